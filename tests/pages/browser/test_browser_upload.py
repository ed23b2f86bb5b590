"""Uploading in a real browser: several files at once, good and bad, and finding them in the results."""

import re
import shutil

import pytest
from playwright.sync_api import expect
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from pages.ui.shell import access
from results.files import journal
from tests.pages.browser.serving import Server, opened_in, saved, settled

pytestmark = pytest.mark.browser
HEADER = "gpu,implementation,seqlen,head_dim,dtype,causal,batch,num_heads,mode,timing,latency_ms\n"
ROWS = "".join(
    f"An uploaded GPU,{name},{seqlen},64,bfloat16,true,1,8,fwd,kernel,{seqlen / speed}\n"
    for seqlen in (128, 256)
    for name, speed in (("torch_naive", 100), ("mine", 300))
)


def _file(name: str, text: str) -> dict:
    return {"name": name, "mimeType": "text/csv", "buffer": text.encode()}


def test_good_bad_and_huge_files_are_told_apart_and_the_good_one_becomes_results(tab, server, tmp_path):
    page, huge = tab("upload"), tmp_path / "huge.csv"
    huge.write_bytes(b"x" * (51 * 1024 * 1024))
    page.locator("input[type=file]").set_input_files(huge)
    expect(page.get_by_text("File must be 50.0MB or smaller")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Import"))).to_have_count(0)
    bad_row = "An uploaded GPU,mine,512,64,bf61,true,1,8,fwd,kernel,1.0\n"
    files = [_file("good.csv", HEADER + ROWS), _file("partly.csv", HEADER + bad_row), _file("bad.csv", "hello\n")]
    page.locator("input[type=file]").set_input_files(files)
    expect(page.get_by_text("bad.csv").last).to_be_visible()
    expect(page.get_by_test_id("stAlertContentError").first).to_be_visible()
    assert "bf61" in saved(page, "Download rejected values", tmp_path).read_text()

    page.get_by_role("button", name=re.compile("Import 4 numbers from 1 file")).click()
    expect(page.get_by_text("good.csv: 4 numbers in 1 run")).to_be_visible()
    assert len(journal.run_folders(server.home)) == 1
    expect(page.get_by_text(re.compile("^All 4 numbers of run upload-.* are here already"))).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Import"))).to_have_count(0)

    page.get_by_role("link", name="Start").first.click()
    settled(page)
    page.get_by_role("button", name="H200").click()
    page.get_by_test_id("stPopoverBody").get_by_text("An uploaded GPU", exact=True).click()
    expect(page.get_by_text(re.compile("mine is the fastest: 3.00× torch_naive"))).to_be_visible()


def test_nothing_is_fetched_from_outside_because_of_a_file(tab):
    page = tab("upload")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    names = ("![x](http://example.com/a.png)", "<img src=http://example.com/b.png>", "=IMAGE(A1)")
    rows = "".join(f"An uploaded GPU,{name},128,64,bfloat16,true,1,8,fwd,kernel,1.0\n" for name in names)
    note = "| impl | seqlen | d | dtype | fwd (ms) |\n|---|---|---|---|---|\n"
    note += "| a | 128 | 64 | bf16 | ![y](http://example.com/c) |\n"
    files = [_file("![z](http://example.com/d.png).csv", HEADER + rows), _file("n.md", note)]
    page.locator("input[type=file]").set_input_files(files)
    page.get_by_role("button", name=re.compile("^Import 1 number from 1 file")).click()
    expect(page.get_by_text("1 number in 1 run")).to_be_visible()
    assert asked and not [url for url in asked if "example.com" in url]


def test_a_page_of_another_origin_cannot_frame_the_app(chrome, server):
    page = chrome.new_page()
    with page.expect_console_message(lambda message: "frame-ancestors 'self'" in message.text):
        page.set_content(f'<iframe src="{server.url}/run_sweep"></iframe>')
    assert not [frame for frame in page.frames if frame.get_by_role("button").count()]
    page.close()


def test_a_browser_that_holds_the_page_of_another_app_gets_ours_with_its_styles(chrome, server):
    page = chrome.new_page()
    held = {"Accept": "text/html", "If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}
    answer = page.request.get(server.url, headers=held)
    assert answer.status == 200 and "stCaptionContainer" in answer.text()
    page.close()


def test_only_a_session_with_the_token_can_send_bytes_on_an_open_address(chrome, shipped, tmp_path):
    shutil.copyfile(shipped, tmp_path / shipped.name)
    server = Server(tmp_path, address="0.0.0.0", environment={access.TOKEN: "a secret"}).start()
    window, frames = chrome.new_context(), []
    page = window.new_page()
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(frame)))
    page.goto(f"{server.url}/upload")
    typed = settled(page).get_by_label("Token of this server", exact=True)
    (session,) = {ForwardMsg.FromString(frame).new_session.initialize.session_id for frame in frames} - {""}
    (key,) = (cookie["value"] for cookie in window.cookies() if cookie["name"] == "_streamlit_xsrf")

    def send() -> tuple[int, str]:
        url, files = f"{server.url}/_stcore/upload_file/{session}/any", {"file": _file("a.csv", HEADER)}
        answer = page.request.put(url, multipart=files, headers={"X-Xsrftoken": key})
        return answer.status, answer.text()

    assert send() == (403, access.OFF)
    typed.fill("a secret")
    typed.press("Enter")
    expect(page.locator("input[type=file]")).to_be_attached()
    assert send() == (204, "")
    assert opened_in(window, f"{server.url}/upload").locator("input[type=file]").count() == 0
    server.stop()
