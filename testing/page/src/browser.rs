//! A headless Chromium with an empty profile, controlled through chromedriver.
//!
//! Each has its own driver on a free port. Dropping it closes the browser, then ends the driver by
//! its process id.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::{ports, process::Process, tools, wait};
use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::action_chain::ActionChain;
use thirtyfour::{By, ChromiumLikeCapabilities, DesiredCapabilities, WebDriver};
use tokio::runtime::{Builder, Runtime};

/// How long the browser may take for anything, on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(30);

const ARGUMENTS: [&str; 10] = [
    "--headless",
    // The tests run as root, for which Chromium has no sandbox.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// Light or dark, as the operating system would set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `prefers-color-scheme: light`
    Light,
    /// `prefers-color-scheme: dark`
    Dark,
}

/// A running browser.
pub struct Browser {
    runtime: Runtime,
    driver: Option<WebDriver>,
    process: Process,
    _directory: TempDir,
}

impl Browser {
    /// Starts one.
    ///
    /// # Errors
    /// When there is no Chromium, or it does not start; the message ends with the driver's last
    /// lines.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts one with further arguments.
    ///
    /// # Errors
    /// When there is no Chromium, or it does not start.
    pub fn start_with(arguments: &[&str]) -> Result<Self> {
        let (browser, driver) = tools::chromium()?;
        let directory = tempfile::tempdir()?;
        let port = ports::free()?;
        let mut command = Command::new(driver);
        command.arg(format!("--port={port}"));
        // Chromium keeps crash reports in the home directory.
        command.env("HOME", directory.path());
        let log = directory.path().join("chromedriver.log");
        let mut process = Process::spawn("chromedriver", &mut command, &log)?;
        process.wait_until("chromedriver to listen", LIMIT, |_| {
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok().map(drop))
        })?;
        let mut wishes = DesiredCapabilities::chrome();
        wishes.set_binary(&browser.to_string_lossy())?;
        let profile = format!("--user-data-dir={}", directory.path().join("profile").display());
        for argument in
            ARGUMENTS.iter().copied().chain([profile.as_str()]).chain(arguments.iter().copied())
        {
            wishes.add_arg(argument)?;
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let driver = runtime
            .block_on(WebDriver::new(format!("http://127.0.0.1:{port}"), wishes))
            .with_context(|| format!("Chromium does not start:\n{}", process.tail()))?;
        Ok(Self { runtime, driver: Some(driver), process, _directory: directory })
    }

    fn driver(&self) -> Result<&WebDriver> {
        self.driver.as_ref().context("the browser is closed")
    }

    /// Goes to this address and waits until it is loaded.
    ///
    /// # Errors
    /// When there is nothing.
    pub fn open(&self, url: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.driver()?.goto(url))?)
    }

    /// Runs the body of a function in the page and returns its result. Its `arguments` are `given`.
    ///
    /// # Errors
    /// When it throws.
    pub fn run(&self, script: &str, given: Vec<Value>) -> Result<Value> {
        let returned = self.runtime.block_on(self.driver()?.execute(script, given))?;
        Ok(returned.json().clone())
    }

    /// Runs the body of an `async` function and returns the value of its promise.
    ///
    /// # Errors
    /// When it throws.
    pub fn run_async(&self, script: &str, given: Vec<Value>) -> Result<Value> {
        let script = format!(
            "const [done] = [...arguments].slice(-1); \
             (async (...given) => {{ {script} }})(...[...arguments].slice(0, -1)).then(done, (e) => done(`threw ${{e}}`))"
        );
        let returned = self.runtime.block_on(self.driver()?.execute_async(script, given))?;
        Ok(returned.json().clone())
    }

    /// Runs this before any script of every page that is opened from now on.
    ///
    /// # Errors
    /// When the browser is gone.
    pub fn run_before_pages(&self, script: &str) -> Result<()> {
        self.devtools("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script }))
            .map(drop)
    }

    /// Clicks the first element of this selector, as a mouse does: an element on top of it gets the
    /// click.
    ///
    /// # Errors
    /// When it does not exist or cannot be clicked within 30 s.
    pub fn click(&self, selector: &str) -> Result<()> {
        wait::until_true(&format!("a click on {selector}"), LIMIT, || {
            let driver = self.driver()?;
            self.runtime.block_on(async { driver.find(By::Css(selector)).await?.click().await })?;
            Ok(true)
        })
    }

    /// Empties a field and types this into it.
    ///
    /// # Errors
    /// When it is not there or cannot be typed into.
    pub fn fill(&self, selector: &str, text: &str) -> Result<()> {
        let driver = self.driver()?;
        Ok(self.runtime.block_on(async {
            let field = driver.find(By::Css(selector)).await?;
            field.clear().await?;
            field.send_keys(text).await
        })?)
    }

    /// Presses keys, wherever the focus is.
    ///
    /// # Errors
    /// When the browser is gone.
    pub fn press(&self, keys: &str) -> Result<()> {
        let actions: ActionChain = self.driver()?.action_chain();
        Ok(self.runtime.block_on(actions.send_keys(keys).perform())?)
    }

    /// The text of the first element of this selector; empty if it does not exist or is hidden.
    ///
    /// # Errors
    /// When the browser is gone.
    pub fn text(&self, selector: &str) -> Result<String> {
        let script = "const at = document.querySelector(arguments[0]); \
                      return at && at.checkVisibility() ? at.innerText : ''";
        Ok(self.run(script, vec![json!(selector)])?.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the text of an element contains `part`.
    ///
    /// # Errors
    /// When it does not within 30 s; the message holds its text.
    pub fn wait_for(&self, selector: &str, part: &str) -> Result<String> {
        wait::until(&format!("{part:?} in {selector}"), LIMIT, || {
            let text = self.text(selector)?;
            anyhow::ensure!(text.contains(part), "it says {text:?}");
            Ok(Some(text))
        })
    }

    /// A window of this size, light or dark.
    ///
    /// # Errors
    /// When the browser is gone.
    pub fn screen(&self, width: u32, height: u32, scheme: Scheme) -> Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if scheme == Scheme::Dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", media).map(drop)
    }

    /// Writes a screenshot of the window as PNG.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn screenshot(&self, path: &Path) -> Result<()> {
        let picture = self.runtime.block_on(self.driver()?.screenshot_as_png())?;
        fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))
    }

    /// A command of the DevTools protocol.
    ///
    /// # Errors
    /// When the browser refuses it.
    pub fn devtools(&self, command: &str, parameters: Value) -> Result<Value> {
        let tools = self.driver()?.cdp();
        Ok(self.runtime.block_on(tools.send_raw(command, parameters))?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // `drop` cannot report a failure.
        if let Some(driver) = self.driver.take() {
            let _ = self.runtime.block_on(driver.quit());
        }
        let _ = self.process.terminate(Duration::from_secs(5));
    }
}
