"""Tables as people keep them in a spreadsheet, for the tests."""

import io

import openpyxl

GERMAN = (
    "Implementation;seq len;head dim;dtype;causal;batch;heads;fwd [µs];Speicher;peak memory (MiB);% of peak\n"
    "torch_naive;1.024;64;bf16;ja;1;8;1.412,5;x;21,5;12,5 %\n"
    "mine;1.024;64;bf16;ja;1;8;103,2;x;4,5;85 %\n"
).replace(";ja;", ";yes;")
MERGED = (
    ",,,Forward,,Backward,\n"
    "seq_len,d,dtype,PyTorch (ms),Triton (ms),PyTorch (ms),Triton (ms)\n"
    '"1,024",64,fp16,0.4,0.1,"1,204.5",OOM\n'
)
RATES = (
    "impl,seqlen,head_dim,dtype,causal,batch,heads,mode,TFLOP/s\n"
    "flash,4096,128,bf16,False,1,16,fwd,500\n"
    "cudnn,4096,128,bf16,False,1,16,fwd,OOM\n"
)
IN_CELLS = "provider,N_CTX,d,precision,time (ms)\nflash,2048,64,fp16,350 us\nnaive,2048,64,fp16,1.5 ms\n"
PERF_REPORT = "N_CTX,Triton [FP16],Flash-2\n1024.0,98.2,110.1\n2048.0,130.5,140.7\n"  # no unit anywhere


def workbook(*sheets: list[list[object]], percent: str | None = None) -> bytes:
    """Return the bytes of a workbook with these sheets; the cell named by `percent` is shown as a percentage."""
    book = openpyxl.Workbook()
    for number, rows in enumerate(sheets):
        sheet = book.active if number == 0 else book.create_sheet()
        for row in rows:
            sheet.append(row)
        if percent:
            sheet[percent].number_format = "0.0%"
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


SHEET: list[list[object]] = [
    ["implementation", "seqlen", "head_dim", "dtype", "causal", "fwd (ms)", "% of peak"],
    ["mine", 1024, 64, "bf16", True, 0.25, 0.855],
    ["mine", 2048, 64, "bf16", True, "OOM", None],
]
