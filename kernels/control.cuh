// What the step's last kernels tell each other and the next step, in device memory, so that a window needs no host.

#pragma once

struct Control {
    float loss_scale;  // what the loss's gradient is multiplied by; 1 unless fp16
    float loss;        // mean loss of the microbatches so far in this step
    float factor;      // what AdamW multiplies the gradient by: unscaling, averaging, clipping
    int apply;         // 0: this step's update is not applied
    int frozen;        // 1: a loss or norm was not finite (not fp16, or fp16 too often): nothing more until the host clears it
    int slot;          // steps done in this window: where losses and norms go
    int good;          // fp16: steps since the scale changed
    int streak;        // fp16: overflows in a row
    int skipped;       // fp16: overflows since the start
};

// What the host sends with each batch.
struct Rates {
    float lr;
    float correction1;  // 1 / (1 - beta1^t)
    float correction2;  // 1 / (1 - beta2^t)
};
