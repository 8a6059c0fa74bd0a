// Causal scaled dot-product attention in 16 bits on tensor cores, with its backward twin. No (T, T) matrix in memory.
//
//   forward    s[i,j] = q_i . k_j / sqrt(D) for j <= i     p = softmax over j     out_i = sum_j p[i,j] v_j
//              lse_i  = log sum_j exp(s[i,j])
//   backward   p[i,j] = exp(s[i,j] - lse_i)    delta_i = dout_i . out_i    ds[i,j] = p[i,j] (dout_i . v_j - delta_i)
//              dv_j = sum_i p[i,j] dout_i    dq_i = sum_j ds[i,j] k_j / sqrt(D)    dk_j = sum_i ds[i,j] q_i / sqrt(D)
//
// Shapes   qkv dqkv: (B, T, 3, H, D)    out dout: (B, T, H, D), which is (N, C)                              act_t, 16 bits
//          lse: (B, H, T)               rows: (B, H, R, 2) with R = T rounded up to a multiple of 128        float32
//          rows is scratch between the two backward launches: (lse * log2(e), delta), (inf, 0) beyond T.
// Writes   everything is assigned; each backward kernel fills its own part of dqkv (dq; dk and dv): nothing is added
// Launch   block (128,), no dynamic shared memory, any B, H, T >= 1
//              k_attn_fwd       grid (B * H, ceil(T / ATTN_FWD_ROWS))
//              k_attn_bwd_dq    grid (B * H, ceil(T / ATTN_DQ_ROWS))       first: it also writes rows
//              k_attn_bwd_dkdv  grid (B * H, ceil(T / ATTN_DKDV_ROWS))     second: it reads rows
// Options  -DACT=1|2, -DHEAD_DIM=32|64|128, and the block's rows -DATTN_FWD_ROWS, -DATTN_DQ_ROWS, -DATTN_DKDV_ROWS: 64 or 128
// Repeats  bit for bit: no atomics; each sum is made by one thread in the order of positions, in chunks that depend on D
//          only. The rows of a block change neither values nor order.
// Needs    sm_80 or newer; qkv, dqkv, out, dout on 16-byte addresses
