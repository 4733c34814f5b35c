//! `bench/budgets.json`: how many instructions a request may cost.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use quotagate_support::paths;
use quotagate_workspace::task;
use serde::{Deserialize, Serialize};

use super::{InstructionReport, Measurement, Operation};
use crate::stacks::Stack;

/// The stacks that have budgets: those whose filter is native, because V8 compiles a Wasm filter on
/// threads of its own, sooner or later. O is left out: its module does what N's does, but for a
/// cluster. So is W: it is N with the log fields of S.
pub const STACKS: [Stack; 6] = [Stack::M, Stack::N, Stack::P, Stack::Q, Stack::R, Stack::S];
/// A budget is this much above what was measured when it was set.
const SLACK: f64 = 1.02;
/// By how much of a request's instructions two runs may differ.
const NOISE: f64 = 0.005;
/// The variable that lets a run set the budgets instead.
const RENEW: &str = "RENEW";

/// What requests and operations may cost.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budgets {
    /// Most instructions of each operation of the core.
    core: BTreeMap<String, u64>,
    /// By stack.
    stacks: BTreeMap<String, Budget>,
}

/// What a request of a stack may cost.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    /// Most instructions of Envoy.
    instructions: u64,
    /// What each hook cost when the budget was set, with Envoy's work behind its callbacks.
    hooks: BTreeMap<String, u64>,
}

fn file() -> PathBuf {
    paths::root().join("bench").join("budgets.json")
}

/// Fails if a request or an operation costs more than its budget; or sets the budgets, if the user
/// asks for that.
pub fn judge(measured: &InstructionReport) -> Result<()> {
    if env::var_os(RENEW).is_some_and(|value| value == "1") {
        let budgets = serde_json::to_string_pretty(&Budgets::of(measured))? + "\n";
        fs::write(file(), budgets)?;
        task::note(&format!("the budgets are in {}", file().display()));
        return Ok(());
    }
    Budgets::read()?.compare(measured)
}

impl Budgets {
    fn read() -> Result<Self> {
        let text = fs::read(file()).with_context(|| format!("cannot read {}", file().display()))?;
        serde_json::from_slice(&text).with_context(|| format!("cannot read {}", file().display()))
    }

    /// Fails if a request or an operation costs more than it may, and names the hooks that cost
    /// more than before.
    fn compare(&self, measured: &InstructionReport) -> Result<()> {
        let stacks = measured.stacks.iter().filter_map(|of| self.excess(of));
        let core = measured.core.iter().filter_map(|of| self.excess_of_core(of));
        let excess: Vec<String> = stacks.chain(core).collect();
        if !excess.is_empty() {
            bail!(
                "the instructions exceed bench/budgets.json:\n{}\n\
                 Make the change cheaper, or set new budgets with `RENEW=1 cargo xtask bench \
                 --instructions --budgets`, and say in the commit why.",
                excess.join("\n")
            );
        }
        task::note("no budget is exceeded");
        Ok(())
    }

    fn of(measured: &InstructionReport) -> Self {
        let core = measured.core.iter();
        let core = core.map(|of| (of.name.clone(), allowed(of.instructions))).collect();
        Self { core, stacks: measured.stacks.iter().map(Budget::of).collect() }
    }

    fn excess_of_core(&self, measured: &Operation) -> Option<String> {
        let Operation { name, instructions: each, .. } = measured;
        let Some(&budget) = self.core.get(name) else {
            return Some(format!("  core, {name}: {each:.0} instructions, and it has no budget"));
        };
        exceeds(&format!("core, {name}"), *each, budget)
    }

    fn excess(&self, measured: &Measurement) -> Option<String> {
        let Measurement { stack, .. } = measured;
        let name = format!("{stack} ({})", stack.title());
        let Some(budget) = self.stacks.get(&stack.to_string()) else {
            let each = measured.each();
            return Some(format!("  {name}: {each:.0} instructions, and it has no budget"));
        };
        let mut text = exceeds(&name, measured.each(), budget.instructions)?;
        for (hook, cost) in measured.hooks() {
            let before = budget.hooks.get(hook).copied().unwrap_or_default() as f64;
            if cost - before > budget.instructions as f64 * NOISE {
                text += &format!("\n    {hook}: {cost:.0}, {:+.0}", cost - before);
            }
        }
        Some(text)
    }
}

/// The budget of what costs so much now.
fn allowed(cost: f64) -> u64 {
    (cost * SLACK).round() as u64
}

/// By how much a cost exceeds its budget, if it does.
fn exceeds(name: &str, cost: f64, budget: u64) -> Option<String> {
    let budget = budget as f64;
    let excess = cost - budget;
    (excess > 0.0).then(|| {
        let before = budget / SLACK;
        format!(
            "  {name}: {cost:.0} instructions, {excess:.0} above its budget of {budget:.0} \
             ({:+.1} % since it was set)",
            (cost - before) / before * 100.0
        )
    })
}

impl Budget {
    fn of(measured: &Measurement) -> (String, Self) {
        let hooks = measured.hooks().map(|(hook, cost)| (hook.to_owned(), cost.round() as u64));
        let budget = Self { instructions: allowed(measured.each()), hooks: hooks.collect() };
        (measured.stack.to_string(), budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::callgrind::{Calls, InstructionCounts};

    fn measured(total: u64, hook: u64, operation: f64) -> InstructionReport {
        let calls = Calls { count: 10, instructions: hook };
        let name = "envoy_dynamic_module_on_http_filter_request_headers".to_owned();
        let counts = InstructionCounts { total, calls: [(name, calls)].into(), allocations: 0 };
        let stack = Measurement { stack: Stack::M, connections: 32, requests: 10, counts };
        let name = "evaluate".to_owned();
        let operation = Operation { name, instructions: operation, allocations: 3.0 };
        InstructionReport { core: vec![operation], stacks: vec![stack] }
    }

    fn budgets() -> Budgets {
        Budgets::of(&measured(1_000_000, 100_000, 1_000.0))
    }

    #[test]
    fn excess_names_the_hook_that_grew() {
        let budgets = budgets();
        assert!(budgets.compare(&measured(1_019_000, 119_000, 1_000.0)).is_ok());
        let grown = measured(1_050_000, 150_000, 1_000.0);
        let error = budgets.compare(&grown).unwrap_err().to_string();
        let excess = "105000 instructions, 3000 above its budget of 102000 (+5.0 % since";
        assert!(error.contains(excess), "{error}");
        assert!(error.contains("request_headers: 15000, +5000"), "{error}");
        assert!(!error.contains("evaluate"), "{error}");
        let elsewhere = measured(1_050_000, 103_000, 1_000.0);
        let error = budgets.compare(&elsewhere).unwrap_err().to_string();
        assert!(!error.contains("request_headers"), "{error}");
    }

    #[test]
    fn excess_names_the_operation_that_grew_or_has_no_budget() {
        let error = |operation: f64, budgets: &Budgets| {
            let measured = measured(1_000_000, 100_000, operation);
            budgets.compare(&measured).unwrap_err().to_string()
        };
        assert!(budgets().compare(&measured(1_000_000, 100_000, 1_020.0)).is_ok());
        let grown = error(1_030.0, &budgets());
        assert!(grown.contains("core, evaluate: 1030 instructions, 10 above"), "{grown}");
        let new = error(1.0, &Budgets { core: BTreeMap::new(), ..budgets() });
        assert!(new.contains("core, evaluate: 1 instructions, and it has no budget"), "{new}");
        let new = error(1.0, &Budgets { stacks: BTreeMap::new(), ..budgets() });
        assert!(new.contains("M (native lease, Redis): 100000 instructions, and it has"), "{new}");
    }

    #[test]
    fn file_has_a_budget_for_each_native_stack() {
        let budgets = Budgets::read().unwrap();
        let stacks: Vec<String> = budgets.stacks.into_keys().collect();
        assert_eq!(stacks, STACKS.map(|stack| stack.to_string()));
        assert!(!budgets.core.is_empty());
    }
}
