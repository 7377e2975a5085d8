"""Callers at the pages, in a real browser: sign in, rights, masked bodies, ends of sessions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import dejaq.sync
from dejaq.errors import DejaqError
from dejaq.security.keys import digest_of, new_secret
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import patient, wait_until
from tests.acceptance.browsing import Tab, broker_apart, browser, gateway, tab_of
from tests.integration.security.certificates import Certificates
from tests.integration.security.provider import WEB_CLIENT, WEB_SECRET, absent, provider

ROOT_ID, ROOT = new_secret(secrets.token_bytes)
ANN_ID, ANN = new_secret(secrets.token_bytes)
# Her session is ended, and her key is refused for minutes: no other test uses it.
ZOE_ID, ZOE = new_secret(secrets.token_bytes)
expect.set_options(timeout=patient(10_000))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A real provider; an address that nothing serves where it is not installed."""
    if absent():
        yield "http://127.0.0.1:9"
        return
    with provider() as url:
        yield url


@pytest.fixture(scope="module")
def auth(tmp_path_factory: pytest.TempPathFactory, issuer: str) -> Path:
    path = tmp_path_factory.mktemp("auth") / "auth.toml"
    keys = "".join(
        f'[[keys]]\nid = "{key_id}"\ndigest = "{digest_of(key)}"\nuser = "{user}"\n'
        for key_id, key, user in ((ROOT_ID, ROOT, "root"), (ANN_ID, ANN, "ann"), (ZOE_ID, ZOE, "zoe"))
    )
    issuers = f'[[issuers]]\nalias = "corp"\nissuer = "{issuer}"\naudience = ["dejaq"]\nclient_id = "{WEB_CLIENT}"\n'
    path.write_text(f'admins = ["key:{ROOT_ID}"]\n{issuers}{keys}')
    return path


@pytest.fixture(scope="module")
def broker(chromium: Browser, auth: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_apart(tmp_path_factory.mktemp("data") / "broker", "--auth", str(auth)) as serving:
        yield serving


@pytest.fixture(scope="module")
def root(broker: BrokerProcess) -> Iterator[dejaq.sync.Client]:
    """An administrator, and a topic that Ann may only inspect."""
    with dejaq.sync.connect(broker.url, api_key=ROOT) as client:
        client.create_topic("mail")
        client.rights().allow("user:ann", ["inspect"], "mail")
        with client.producer("mail", group="billing") as producer:
            producer.send(b"a secret of the tests", id="one", delay=3_600)
        yield client


@pytest.fixture(scope="module")
def address(
    broker: BrokerProcess, auth: Path, root: dejaq.sync.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    secret = tmp_path_factory.mktemp("openid") / "secret"
    secret.write_text(WEB_SECRET)
    with gateway(broker, "--auth", str(auth), "--openid-secret-file", str(secret)) as serving:
        yield serving


def sign_in(tab: Tab, key: str, path: str) -> None:
    """Open a page, which leads to the form, and come back to the page."""
    tab.go(path)
    expect(tab.page.get_by_role("heading", name="Sign in")).to_be_visible()
    tab.page.get_by_label("API key or token").fill(key)
    tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page).to_have_url(tab.address + path)
    tab.page.wait_for_load_state()


def test_a_caller_signs_in_and_sees_what_it_may_not_do(chromium: Browser, address: str, tmp_path: Path) -> None:
    tab = tab_of(chromium, address)
    page = tab.page
    tab.go("/topics/mail")
    tab.axe()
    tab.shoot("web-sign-in", tmp_path)
    tab.expected = ("401",)
    page.get_by_label("API key or token").fill("dq_000000000000_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("The API key is not valid")
    sign_in(tab, ANN, "/topics/mail/messages/one")
    assert page.evaluate("document.cookie") == ""
    expect(page.get_by_text("The body is masked")).to_be_visible()
    assert "a secret of the tests" not in page.content()
    expect(page.get_by_role("button", name="Cancel the message")).to_be_disabled()
    expect(page.get_by_text("You may not do this: no rule allows").first).to_be_visible()
    tab.axe()
    for path in ("/topics/mail/produce", "/topics/mail/consume"):
        tab.go(path)
        assert page.locator("form.api fieldset:disabled button").count() == 1
    tab.go("/topics/mail/messages")
    expect(page.locator("main tbody")).to_contain_text("masked")
    tab.go("/pipeline")
    tab.go("/access?operation=produce&topic=mail")
    expect(page.get_by_role("status").filter(has_text="Not allowed")).to_be_visible()
    expect(page.locator("header")).to_contain_text("ann")
    tab.axe()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    tab.go("/topics")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    tab.check()
    page.context.close()


def test_keys_and_rules_are_managed_and_a_revoked_key_ends_the_open_page(
    chromium: Browser, address: str, broker: BrokerProcess, root: dejaq.sync.Client, tmp_path: Path
) -> None:
    """A session ends: the page that is open leads to the sign-in by itself when it is used, and the key is gone."""
    tab = tab_of(chromium, address)
    page = tab.page
    sign_in(tab, ROOT, "/access")
    page.get_by_text("Add a rule").click()
    page.get_by_label("Principal", exact=True).fill("user:eve")
    page.get_by_label("Operations").fill("inspect, produce")
    page.locator("details form").get_by_label("Topic").fill("mail")
    expect(page.locator("details [data-as=cli]").last).to_contain_text("dejaq rights allow user:eve")
    page.get_by_role("button", name="Add").click()
    rule = page.locator("tr", has_text="user:eve")
    expect(rule).to_have_count(1)
    page.get_by_text("Make a key").click()
    page.get_by_label("User", exact=True).fill("eve")
    page.get_by_role("button", name="Make").click()
    shown = page.locator(".outcome", has_text="Copy its secret now")
    expect(shown).to_be_visible()
    secret = (shown.text_content() or "").splitlines()[-1]
    page.evaluate("scrollTo(0, 0)")
    tab.shoot("web-access", tmp_path)
    eve = tab_of(chromium, address)
    sign_in(eve, secret, "/topics/mail/due")
    expect(eve.page.locator("#connection")).to_have_text("live")
    tab.go("/access")
    page.get_by_role("button", name=f"Revoke {secret[3:15]}").click()
    page.get_by_role("button", name="Revoke it now").click()
    eve.expected = ("401",)
    # The page asks every second; the broker refuses, and the session ends.
    expect(eve.page.get_by_role("heading", name="Sign in")).to_be_visible(timeout=patient(30_000))
    expect(eve.page.get_by_role("alert")).to_contain_text("Your session has ended")
    tab.go("/access")
    expect(page.get_by_role("button", name=f"Revoke {secret[3:15]}")).to_have_count(0)
    rule.get_by_role("button", name="Remove rule").click()
    rule.get_by_role("button", name="Keep it").click()
    rule.get_by_role("button", name="Remove rule").click()
    rule.get_by_role("button", name="Remove it now").click()
    expect(rule).to_have_count(0)
    tab.check()
    for one in (tab, eve):
        one.page.context.close()


def test_a_producer_session_is_ended_by_hand(
    chromium: Browser, address: str, broker: BrokerProcess, root: dejaq.sync.Client
) -> None:
    tab = tab_of(chromium, address)
    root.create_topic("other")
    root.rights().allow("user:zoe", ["produce"], "other")
    with dejaq.sync.connect(broker.url, api_key=ZOE) as other, other.producer("other") as producer:
        producer.send(b"x", delay=600)
        sign_in(tab, ROOT, "/clients")
        expect(tab.page.locator("main")).to_contain_text("producer")
        row = tab.page.locator("tr", has_text=ZOE_ID)
        row.get_by_role("button", name="End the session").click()
        row.get_by_role("button", name="End it now").click()
        expect(row.get_by_text("Done.")).to_be_visible()

        def is_refused() -> bool:
            try:
                producer.send(b"y", delay=600)
            except DejaqError:
                return True
            return False

        wait_until(is_refused, within=20, what="the ended session sends nothing more")
    tab.page.context.close()


@pytest.mark.skipif(bool(absent()), reason=absent() or "the provider is there")
def test_a_person_signs_in_at_a_provider(chromium: Browser, address: str) -> None:
    """The whole way in a browser: the provider's own forms, and back to the page that was asked for."""
    tab = tab_of(chromium, address)
    page = tab.page
    tab.go("/cluster")
    page.get_by_role("link", name="Continue with corp").click()
    page.locator("input[name=login]").fill("alice")
    page.locator("input[name=password]").fill("not looked at")
    page.locator("button[type=submit]").click()
    page.locator("button[type=submit]").click()
    page.wait_for_url("**/cluster")
    expect(page.locator("header")).to_contain_text("alice")
    page.context.close()


def test_the_pages_are_served_with_tls(chromium: Browser, broker: BrokerProcess, tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    options = ("--login", "--tls-cert", str(files.server.cert), "--tls-key", str(files.server.key))
    with gateway(broker, *options) as serving:
        tab = tab_of(chromium, serving.replace("http:", "https:"), ignore_https_errors=True)
        sign_in(tab, ROOT, "/topics")
        (cookie,) = tab.page.context.cookies()
        assert (cookie["name"], cookie["secure"], cookie["httpOnly"]) == ("__Host-dejaq", True, True)
        assert cookie["sameSite"] == "Lax"
        tab.go("/")
        expect(tab.page.locator("#connection")).to_have_text("live")
        tab.check()
        tab.page.context.close()
