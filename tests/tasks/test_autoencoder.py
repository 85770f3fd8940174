"""The autoencoder of the digits: the classifiers' split, the error that is said, a plateau that must be left."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.kit.plain_training import evaluated, trained
from workbench.tasks import load_task
from workbench.tasks.autoencoder import Autoencoder, ReconstructionError, load_pixels
from workbench.tasks.digits import load_images


def test_pixels_are_the_images_of_the_classifiers() -> None:
    pixels = load_pixels()
    assert pixels.shape == (1797, 64)
    assert sorted(set((pixels * 16).flatten().tolist())) == list(range(17))
    torch.testing.assert_close((pixels * 16 - 4.884) / 6.017, load_images()[0].flatten(1))


def test_the_split_of_a_seed_is_that_of_the_classifiers() -> None:
    task, classifier = load_task("digits-autoencoder"), load_task("digits-resnet")
    kept = torch.cat([x for x, _ in task.evaluation_batches(3)])
    images = torch.cat([x for x, _ in classifier.evaluation_batches(3)]).flatten(1)
    torch.testing.assert_close((kept * 16 - 4.884) / 6.017, images)


def test_batches_are_to_be_reconstructed() -> None:
    task = load_task("digits-autoencoder")
    for pixels, target in (next(task.batches(0)), next(iter(task.evaluation_batches(0)))):
        assert torch.equal(pixels, target)
    assert next(task.batches(0))[0].shape == (128, 64)
    assert (task.metric_name, task.higher_is_better) == ("loss", False)


def test_the_error_is_the_squared_distance_of_an_image() -> None:
    outputs, pixels = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    assert ReconstructionError()(outputs, pixels).item() == pytest.approx((1 + 4 + 9) / 2)
    assert ReconstructionError()(outputs.half() * 1000, pixels).isfinite()


def test_the_metric_is_the_mean_over_all_images_though_the_last_batch_is_no_shorter() -> None:
    task = load_task("digits-autoencoder")
    model = task.new_model()
    with torch.no_grad():
        kept = torch.cat([x for x, _ in task.evaluation_batches(0)])
        expected = ((model(kept) - kept) ** 2).sum() / len(kept)
    assert evaluated(task, model) == pytest.approx(expected.item(), rel=1e-5)


def test_the_network_narrows_to_its_code_and_mirrors_itself() -> None:
    model = Autoencoder((8, 4), n_inputs=16)
    shapes = [tuple(layer.weight.shape) for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert shapes == [(8, 16), (4, 8), (8, 4), (16, 8)]
    assert [sum(isinstance(m, nn.Tanh) for m in half) for half in (model.encoder, model.decoder)] == [1, 1]
    assert isinstance(model.encoder[-1], nn.Linear), "the code is linear"
    assert sum(p.numel() for p in Autoencoder().parameters()) == 117_712


def linear_error(n_components: int, seed: int) -> float:
    """Return what the best linear autoencoder of the training images reaches on the evaluation images."""
    task = load_task("digits-autoencoder")
    kept = torch.cat([x for x, _ in task.evaluation_batches(seed)]).double()
    stream = task.batches(seed)
    training = torch.cat([next(stream)[0] for _ in range(10)]).double()
    mean = training.mean(dim=0)
    components = torch.linalg.svd(training - mean, full_matrices=False).Vh[:n_components]
    rest = (kept - mean) - (kept - mean) @ components.T @ components
    return float(rest.square().sum(dim=1).mean())


def test_gradient_descent_rests_near_the_linear_solution() -> None:
    task, linear = load_task("digits-autoencoder"), linear_error(16, seed=0)
    _, early = trained(task, seed=0, n_steps=250)
    assert 0.9 * linear < early < 1.4 * linear


@pytest.mark.long
def test_longer_training_leaves_the_linear_solution_behind() -> None:
    assert trained(load_task("digits-autoencoder"), seed=0, n_steps=1500)[1] < 0.9 * linear_error(16, seed=0)
