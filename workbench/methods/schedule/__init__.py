"""Length and shape of the learning-rate schedule: fewer samples, annealed to the end of the run that remains."""

from workbench.methods.protocol import Description

DESCRIPTION = Description(
    name="schedule",
    title="Schedule",
    summary="Trains on a share of the samples, with the learning rate annealed to the end of that shorter run.",
    section="schedule",
    switch="schedule.length",
    enabled_by={"boost.mode": "disable_all", "schedule.length": 0.5},
    acts="workbench.methods.schedule.method:ScheduleMethod",
    paper='Defazio et al., "Optimal Linear Decay Learning Rate Schedules and Further Refinements", 2023, '
    "arXiv:2310.07831",
    section_class="workbench.methods.schedule.section:ScheduleSection",
)
