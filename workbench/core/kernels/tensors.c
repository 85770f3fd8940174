/* What torch's tensors are, asked of torch by its C interface: one call for a whole list, where Python would ask every
 * tensor for every property.
 *
 * The interface is the one that compiled models use (torch/csrc/inductor/aoti_torch/c/shim.h). A handle of it points to
 * an at::Tensor, which is nothing but a pointer to the implementation. Whoever calls this has tried that out.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Functions of torch; all but 0 is an error. */
struct torch {
    int32_t (*get_dtype)(void *, int32_t *);
    int32_t (*get_layout)(void *, int32_t *);
    int32_t (*get_device_type)(void *, int32_t *);
    int32_t (*is_contiguous)(void *, bool *);
    int32_t (*get_data_ptr)(void *, void **);
    int32_t (*get_numel)(void *, int64_t *);
};

/* What the tensors shall be. */
struct wanted {
    int32_t dtype, layout, device_type;
};

/* Write addresses and lengths of tensors, up to the first that is not what it shall be, not contiguous or without
 * memory; return how many there are before it.
 */
int64_t look_at(int64_t tensors, void **implementations, const struct torch *torch, const struct wanted *wanted,
                uint64_t *addresses, int64_t *lengths) {
    for (int64_t t = 0; t < tensors; t++) {
        void *handle = implementations + t, *data = NULL;
        int32_t dtype, layout, device_type;
        int64_t length;
        bool contiguous;
        if (torch->get_dtype(handle, &dtype) || dtype != wanted->dtype) return t;
        if (torch->get_layout(handle, &layout) || layout != wanted->layout) return t;
        if (torch->get_device_type(handle, &device_type) || device_type != wanted->device_type) return t;
        if (torch->is_contiguous(handle, &contiguous) || !contiguous) return t;
        if (torch->get_numel(handle, &length) || torch->get_data_ptr(handle, &data)) return t;
        if (length > 0 && data == NULL) return t;
        addresses[t] = (uint64_t)data;
        lengths[t] = length;
    }
    return tensors;
}
