"""Headers and a row of the two layouts of tables."""

WIDE = "seq_len,d,dtype,PT fwd (ms),PT bwd (ms),TR fwd (ms),TR bwd (ms),Fwd Speedup\n"
LONG = "impl,dtype,seq_len,d_model,batch,is_causal,forward_ms_mean,forward_ms_std\n"
ROW = "torch,bf16,128,64,1,True,0.35,0.01\n"
