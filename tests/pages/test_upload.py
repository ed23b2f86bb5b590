"""The page Upload: what is understood, corrected, refused and imported."""

import io
import re
import shutil
import threading
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from results import formats
from results.files import journal
from results.files.journal import RunFolder
from results.formats import bounded, mapping
from results.render import export
from results.store.database import open_store
from tests.cases import HANG_S
from tests.pages.conftest import shown
from tests.results.formats.peers.peer_files import excerpt

HEADER = b"implementation,seqlen,head_dim,dtype,causal,mode,latency_ms\n"
GOOD = HEADER + b"fast,128,64,bf16,true,fwd,0.5\nslow,128,64,bf16,true,fwd,1.0\n"
ONE_BAD = GOOD + b"slow,256,64,bf61,true,fwd,2.0\n"


@pytest.fixture
def page(app):
    return app.switch_page("pages/upload.py").run()


def test_one_click_imports_what_was_understood_which_is_not_offered_again(page, home):
    page.file_uploader[0].upload("mine.csv", GOOD)
    page.run()
    assert "2 numbers" in shown(page)
    assert "Import 2 numbers from 1 file" in [button.label for button in page.button]
    assert [folder.run_id for folder in journal.run_folders(home)] == ["run-a"]
    page.text_input(key="upload_gpu").set_value("NVIDIA L4").run()
    page.button(key="import").click().run()
    assert "2 numbers in 1 run" in shown(page)
    assert {folder.run().gpu_name for folder in journal.run_folders(home)} == {"Test GPU", "NVIDIA L4"}
    assert len(journal.run_folders(home)) == 2
    page.run()
    assert re.search(r"All 2 numbers of run upload-\w+ are here already", shown(page))
    assert "import" not in [button.key for button in page.button]


def test_numbers_are_imported_without_the_rejected_ones_which_are_named_and_undo_takes_them_back(page, home):
    page.file_uploader[0].upload("mine.csv", ONE_BAD)
    page.run()
    rejected = page.dataframe[0].value.iloc[0]
    assert (rejected["line"], rejected["column"], rejected["value"]) == (4, "dtype", "bf61")
    assert "bfloat16" in rejected["reason"]
    assert "Left out: 1 rejected value" in shown(page)
    page.button(key="import").click().run()
    assert "2 numbers in 1 run" in shown(page)
    page.button(key="undo_import").click().run()
    assert "The import is taken back: 1 run moved to the trash" in shown(page)
    assert [folder.run_id for folder in journal.run_folders(home)] == ["run-a"]


@pytest.mark.parametrize("name", ["run-a.csv", "run-a.md", "packed.zip"])
def test_an_export_and_a_run_folder_as_a_zip_are_taken(page, home, name):
    folder = home / "runs" / "run-a"
    before = {m.measurement_id: m.value for m in RunFolder(folder).read()[0]}
    with closing(open_store(home)) as store:
        data = export.export(store, "csv" if name.endswith("csv") else "md", export.Selection(run=("run-a",)))
    if name.endswith("zip"):
        data = Path(shutil.make_archive(str(home / "packed"), "zip", folder.parent, "run-a")).read_bytes()
    shutil.rmtree(folder)
    page.file_uploader[0].upload(name, data)
    page.run()
    assert ("leaves out samples" in shown(page)) == name.endswith("md")
    page.button(key="import").click().run()
    assert "27 numbers in 1 run" in shown(page)
    assert {m.measurement_id: m.value for m in RunFolder(folder).read()[0]} == before


def test_a_file_that_is_no_result_is_refused_in_words(page):
    for data in (b"", b"\xff\xfe\x00", b"a,b\n1,2\n", b"# only a comment\n", b"implementation\n\n"):
        page.file_uploader[0].set_value([("bad.csv", data, "text/csv")]).run()
        assert not page.exception
        assert page.error or page.warning, data  # a warning asks what the columns of a table are
        assert "import" not in [button.key for button in page.button]


def test_a_file_name_is_text_and_never_markup(page):
    page.file_uploader[0].upload("a](javascript:x)**b**.csv", GOOD)
    page.run()
    assert not page.exception
    assert r"\*\*b\*\*" in page.markdown[1].value


def test_what_the_checks_say_is_shown_before_anything_is_stored(page, home):
    header = b"gpu,implementation,seqlen,head_dim,batch,num_heads,dtype,causal,mode,timing,latency_ms\n"
    too_fast = header + b"NVIDIA H200,fast,8192,128,8,16,bf16,false,fwd,kernel,0.001\n"
    page.file_uploader[0].upload("fast.csv", too_fast)
    page.run()
    assert any("1 impossible" in expander.label for expander in page.expander)
    assert [folder.run_id for folder in journal.run_folders(home)] == ["run-a"]


def test_files_of_several_machines_are_told_apart_in_one_table(page):
    header = b"gpu,implementation,seqlen,head_dim,dtype,causal,mode,latency_ms\n"
    row = b"%s,fast,128,64,bf16,true,fwd,0.5\n"
    files = [(name, header + row % name.encode(), "text/csv") for name in ("GPU one", "GPU two")]
    page.file_uploader[0].set_value([(f"{name}.csv", data, kind) for name, data, kind in files]).run()
    assert page.dataframe[-1].value["machine"].tolist() == ["GPU one", "GPU two"]


def test_a_table_that_nobody_knows_is_read_as_its_columns_are_chosen_and_remembered(page, home):
    page.file_uploader[0].upload("report.csv", b"N_CTX,Triton [FP16],Flash-2\n1024,0.2,0.1\n2048,0.8,0.4\n")
    page.run()
    assert "This table is of no known format. No column of times" in shown(page)
    assert "To compare these numbers with other runs and GPUs, say dtype, head_dim, batch" in shown(page)
    assert "import" not in [button.key for button in page.button]
    for at, header, name in ((2, "Triton [FP16]", "triton"), (3, "Flash-2", "flash")):
        page.selectbox[_at(page, f"Column {at} is")].select("latency_ms/us").run()
        field = page.text_input[_of(page, "of implementation", at - 2)]
        assert field.value == header, "the likely name"
        field.set_value(name).run()
    assert "Import 4 numbers from 1 file" in [button.label for button in page.button]
    page.button(key="import").click().run()
    assert "4 numbers in 1 run" in shown(page)
    assert "It does not state dtype, head_dim, causal, mode, so there is nothing to compare it with." in shown(page)
    (folder,) = [folder for folder in journal.run_folders(home) if folder.run_id != "run-a"]
    assert {m.value for m in folder.read()[0]} == {0.2e-3, 0.1e-3, 0.8e-3, 0.4e-3}
    assert len(mapping.remembered(home)) == 1


def test_an_import_that_shares_shapes_with_a_run_says_so_and_leads_to_both(page):
    name = "cudnn_inference_decode_h200.csv"
    page.file_uploader[0].upload(name, excerpt(name))
    page.run().button(key="import").click().run()
    assert "12 shared shapes" in shown(page)
    (link,) = (link for link in page.get("page_link") if link.proto.label == "Compare with our run")
    assert link.proto.query_string.startswith("of=Import+beside+a+run&upload=upload-")


def _at(page, label: str) -> int:
    return [select.label for select in page.selectbox].index(label)


def _of(page, label: str, number: int) -> int:
    return [at for at, field in enumerate(page.text_input) if field.label == label][number]


def test_a_guess_can_be_corrected_before_the_import(page):
    page.file_uploader[0].upload("mine.csv", GOOD.replace(b"latency_ms", b"time (s)"))
    page.run()
    assert "2 numbers" in shown(page)
    page.selectbox[_at(page, "Column 7 is")].select("latency_ms/us").run()
    assert "Differs from the guess" in shown(page)
    first = page.dataframe[0].value
    assert first["value"].tolist() == [0.5e-3, 1e-3]


def test_a_run_of_the_same_id_and_another_gpu_can_be_taken_as_new(page, home):
    with closing(open_store(home)) as store:
        data = export.export(store, "csv", export.Selection(run=("run-a",)))
    page.file_uploader[0].upload("run-a.csv", data.replace(b"Test GPU", b"Another GPU"))
    page.run()
    assert "of GPU Test GPU (the file says Another GPU)" in shown(page)
    assert "import" not in [button.key for button in page.button]
    (choice,) = [control for control in page.segmented_control if "are here with other" in control.label]
    choice.set_value("new").run()
    page.button(key="import").click().run()
    assert {folder.run_id: folder.run().gpu_name for folder in journal.run_folders(home)} == {
        "run-a": "Test GPU",
        "run-a-2": "Another GPU",
    }


def test_a_zip_of_tables_is_its_tables_and_the_same_file_twice_is_one(page):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.csv", GOOD)
        archive.writestr("b.csv", GOOD)
        archive.writestr("c.csv", GOOD.replace(b"fast", b"faster"))
    page.file_uploader[0].upload("tables.zip", packed.getvalue())
    page.run()
    assert "Import 4 numbers from 2 files" in [button.label for button in page.button]
    assert "tables-b.csv is the same file as tables-a.csv" in shown(page)


def test_the_first_numbers_of_a_long_file_are_drawn_while_it_is_read(page, home, monkeypatch):
    lines = [b"fast,%d,64,bf16,true,fwd,0.5,%s\n" % (16 * at, 3_000 * b"x") for at in range(1, 101)]
    began, whole = threading.Event(), HEADER.replace(b"\n", b",note\n") + b"".join(lines)

    def call(work, *arguments, **named):
        if work is formats.understand:
            assert whole not in arguments or began.wait(HANG_S), "nothing of it was read meanwhile"
            began.set()
        return work(*arguments, **named)

    monkeypatch.setattr(bounded, "call", call)
    page.file_uploader[0].upload("long.csv", whole)
    page.run()
    page.button(key="import").click().run()
    assert "100 numbers in 1 run" in shown(page)
    assert len(journal.run_folders(home)) == 2
