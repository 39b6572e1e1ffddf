"""A headless Chromium for the tests of pages."""

import shutil
import tempfile

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="session")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not BROWSER or not DRIVER:
        pytest.skip("there is no Chromium with chromedriver (Debian: chromium, chromium-driver)")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (
            "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run",
            "disable-background-networking", "disable-component-update", "disable-sync",
            f"user-data-dir={profile}",
        ):  # fmt: skip
            options.add_argument(f"--{argument}")
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        try:
            yield driver
        finally:
            driver.quit()


def open_page(browser, page, width=1280, scheme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    scheme = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get(page.as_uri())
