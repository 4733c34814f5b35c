//! All combinations of values that the tests of the chart know.

use anyhow::{Context, Result, bail, ensure};
use quotagate_chart::cases::{accepted, refused};
use serde_json::Value;

use super::{
    api_server::output,
    helm::{Helm, RELEASE, chart},
};
use crate::checks::Checks;

/// Labels of every object of the release.
const LABELS: &str =
    "app.kubernetes.io/instance=quotagate,app.kubernetes.io/managed-by=Helm,helm.sh/chart";

/// Runs their checks.
pub fn run(helm: &Helm<'_>, checks: &mut Checks) {
    checks.check(
        "kubernetes.lifecycle",
        "every combination of values installs, upgrades, rolls back and uninstalls, without a warning and without left-overs",
        || each(accepted().iter(), |(example, values)| lifecycle(helm, example, values)),
    );
    checks.check(
        "kubernetes.dry_run",
        "`helm template | kubectl apply --dry-run=server` accepts every object, with hooks and tests, without a warning",
        || each(accepted().iter(), |(example, values)| dry_run(helm, example, values)),
    );
    checks.check(
        "kubernetes.refused",
        "wrong values are refused with their name and a remedy, and nothing is installed",
        || {
            let seen = each(refused().iter(), |(example, values, parts)| {
                let values = helm.values(example, values)?;
                helm.refused(&["install", RELEASE, &chart(), "-f", &values], parts)?;
                ensure!(helm.run(&["list", "-q"])?.is_empty(), "a release is left");
                Ok(())
            })?;
            let left = helm.objects("helm.sh/chart")?;
            ensure!(left.is_empty(), "left: {}", left.join(", "));
            Ok(seen)
        },
    );
}

/// Runs a check for each case, and reports all that fail.
fn each<T: std::fmt::Debug>(
    cases: impl ExactSizeIterator<Item = T>,
    check: impl Fn(T) -> Result<()>,
) -> Result<String> {
    let all = cases.len();
    let mut faults = Vec::new();
    for case in cases {
        let name = format!("{case:?}").chars().take(300).collect::<String>();
        if let Err(fault) = check(case) {
            faults.push(format!("{name}: {fault:#}"));
        }
    }
    if !faults.is_empty() {
        bail!("{} of {all} fail: {}", faults.len(), faults.join("; "));
    }
    Ok(format!("{all} combinations"))
}

fn lifecycle(helm: &Helm<'_>, example: &str, values: &Value) -> Result<()> {
    let seen = (|| {
        helm.put("install", example, values).context("install")?;
        let manifest = helm.run(&["get", "manifest", RELEASE])?;
        let all = manifest.lines().filter(|line| line.starts_with("kind: ")).count();
        let labelled = helm.objects(LABELS)?;
        ensure!(labelled.len() == all, "{all} objects, but only {labelled:?} have all labels");
        let values = helm.values(example, values)?;
        let changed = ["--set", "image.tag=two,store.log=warn"];
        let upgrade = ["upgrade", RELEASE, &chart(), "-f", &values];
        helm.run(&[&upgrade[..], &changed].concat()).context("upgrade")?;
        helm.run(&["rollback", RELEASE, "1"]).context("roll back")?;
        let back = helm.run(&["get", "manifest", RELEASE])?;
        ensure!(back == manifest, "the manifest after the rollback differs");
        Ok(())
    })();
    // The next case needs an empty cluster, whatever happened.
    let gone = helm.uninstall();
    seen.and(gone)
}

fn dry_run(helm: &Helm<'_>, example: &str, values: &Value) -> Result<()> {
    let values = helm.values(example, values)?;
    let objects = helm.run(&["template", RELEASE, &chart(), "-f", &values])?;
    let mut kubectl = helm.api.kubectl();
    let output = output(kubectl.args(["apply", "--dry-run=server", "-f", "-"]), &objects)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && errors.is_empty(), "{errors}");
    Ok(())
}
