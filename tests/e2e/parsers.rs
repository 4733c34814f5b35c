//! Which families of quota headers common client parsers understand: `ratelimit-header-parser` of
//! npm and `ratelimit-headers` of PyPI. Both read the default.
//!
//! The test installs both into its own folder, and fails if it cannot.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use quotagate_support::http::{Request, Response};
use quotagate_support::tools;
use serde_json::{Value, json};

use crate::rig::{Rig, document, per_caller};

const QUOTA: u64 = 5;

const NPM: &str = "ratelimit-header-parser@0.1.0";
/// Parses the headers in its argument and prints the result, in JavaScript.
const NPM_SCRIPT: &str = "
    import {parseRateLimit} from 'ratelimit-header-parser';
    console.log(JSON.stringify(parseRateLimit(JSON.parse(process.argv[2])) ?? null));";

const PYPI: &str = "ratelimit-headers==0.1.0";
/// Parses the headers in its argument and prints the result, in Python.
const PYPI_SCRIPT: &str = "
import json, sys, ratelimit_headers
state = ratelimit_headers.parse(response_headers=json.loads(sys.argv[1]))
print(json.dumps({'limit': state.limit, 'remaining': state.remaining}))";

/// The output of a program, as JSON.
fn printed(command: &mut Command) -> Result<Value> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} fails: {errors}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn install(into: &Path) -> Result<()> {
    for program in ["node", "npm", "python3"] {
        if tools::on_path(program).is_none() {
            bail!(
                "this test needs {program} on PATH: install Node.js 18 or newer, and Python 3 with pip"
            );
        }
    }
    let npm = ["install", "--ignore-scripts", "--no-fund", "--no-audit", "--prefix"];
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"];
    for command in [
        Command::new("npm").args(npm).arg(into).arg(NPM),
        Command::new("python3").args(pip).arg(into.join("python")).arg(PYPI),
    ] {
        let output = command.output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{command:?} fails; is there a network? It says: {errors}"
        );
    }
    std::fs::write(into.join("parse.mjs"), NPM_SCRIPT)?;
    Ok(())
}

/// Whether each parser reads the limit and these remaining units from the headers of a response.
fn understood(response: &Response, remaining: u64, installed: &Path) -> Result<[bool; 2]> {
    let names = response.headers.iter().map(|(name, _)| name.to_lowercase());
    let headers: serde_json::Map<String, Value> =
        names.map(|name| (name.clone(), json!(response.header_all(&name).join(", ")))).collect();
    let headers = Value::from(headers).to_string();
    let npm = printed(Command::new("node").arg(installed.join("parse.mjs")).arg(&headers))?;
    let mut python = Command::new("python3");
    let pypi = printed(python.env("PYTHONPATH", installed.join("python")).args([
        "-c",
        PYPI_SCRIPT,
        &headers,
    ]))?;
    Ok([npm, pypi].map(|read| read["limit"] == QUOTA && read["remaining"] == remaining))
}

#[test]
fn parsers_of_npm_and_pypi_understand_the_documented_header_families() -> Result<()> {
    let directory = tempfile::tempdir()?;
    install(directory.path())?;
    let cases: [(Option<&[&str]>, [bool; 2]); 6] = [
        (None, [true, true]),
        (Some(&["ietf", "x_ratelimit"]), [false, false]),
        (Some(&["ietf", "draft_03"]), [false, true]),
        (Some(&["draft_03"]), [true, true]),
        (Some(&["draft_07"]), [true, false]),
        (Some(&["draft_07", "draft_03", "x_ratelimit"]), [true, true]),
    ];
    for (families, expected) in cases {
        let mut document = document(json!([per_caller(QUOTA)]));
        document["response"] = families.map_or(json!({}), |names| json!({"headers": names}));
        let rig = Rig::start(document)?;
        let mut client = rig.client()?;
        for (status, remaining) in [(200, 4), (200, 3), (200, 2), (200, 1), (200, 0), (429, 0)] {
            let response = client.send(&Request::get("/"))?;
            assert_eq!(response.status, status);
            if remaining == QUOTA - 1 || status == 429 {
                assert_eq!(
                    understood(&response, remaining, directory.path())?,
                    expected,
                    "[npm, PyPI] on {families:?}: {response:?}"
                );
            }
        }
    }
    Ok(())
}
