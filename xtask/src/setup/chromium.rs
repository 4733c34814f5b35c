//! Chromium and its chromedriver, for the tests of the live page: the user's own, else Debian's.

use anyhow::{Result, bail};
use quotagate_support::tools;

use super::apt;
use crate::run;

const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

pub fn run() -> Result<()> {
    if let Ok((browser, _)) = tools::chromium() {
        run::note(&format!("Chromium: {}", browser.display()));
        return Ok(());
    }
    if !apt::available() {
        bail!(
            "the tests of the live page need chromium and chromedriver on PATH: install both (Debian: `sudo apt-get \
             install chromium chromium-driver`; Fedora: `sudo dnf install chromium chromedriver`)"
        );
    }
    run::note(&format!("Chromium: none here, apt-get installs {}", PACKAGES.join(" and ")));
    PACKAGES.iter().try_for_each(|package| apt::install(package))?;
    tools::chromium().map(drop)
}
