//! The output of the crate divan: a tree of benches, with the median in the third column.

use anyhow::{Result, bail};

use super::Timed;

/// The benches with a budget in their names.
///
/// # Errors
/// When there is none, because the output has another form.
pub fn parse(printed: &str) -> Result<Vec<Timed>> {
    let mut benches = Vec::new();
    let mut parent = "";
    for line in printed.lines() {
        let Some((first, _)) = line.split_once('│').filter(|_| line.starts_with(['├', '╰']))
        else {
            benches.extend(
                line.starts_with('│')
                    .then(|| bench(line.trim_start_matches(['│', ' ']), parent))
                    .flatten(),
            );
            continue;
        };
        match bench(line, "") {
            Some(timed) => benches.push(timed),
            None => parent = name(first),
        }
    }
    if benches.is_empty() {
        bail!("divan printed no bench with a budget:\n{printed}");
    }
    Ok(benches)
}

/// `├─ NAME, budget N ns   FASTEST │ SLOWEST │ MEDIAN │ ...`
fn bench(line: &str, parent: &str) -> Option<Timed> {
    let (own, rest) = line.split_once(", budget ")?;
    let (budget, columns) = rest.split_once(" ns")?;
    let median = nanoseconds(columns.split('│').nth(2)?.trim())?;
    let name = [parent, name(own)].join(" ").trim().to_owned();
    Some(Timed { name, median, budget: budget.parse().ok()? })
}

fn name(cell: &str) -> &str {
    cell.trim_start_matches(['├', '╰', '─', '│', ' ']).trim_end()
}

/// `1.4 µs` in ns.
fn nanoseconds(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let factor = match unit {
        "ps" => 1e-3,
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
Timer precision: 20 ns
request                             fastest       │ slowest       │ median        │ mean          │ samples │ iters
├─ answer, budget 2500 ns           1.341 µs      │ 16.8 µs       │ 1.401 µs      │ 1.572 µs      │ 100     │ 100
├─ decode a reply                                 │               │               │               │         │
│  ├─ of 1, budget 1200 ns          600.4 ns      │ 6.752 µs      │ 630.9 ns      │ 868.1 ns      │ 100     │ 100
│  │                                1.665 Mitem/s │ 148 Kitem/s   │ 1.584 Mitem/s │ 1.151 Mitem/s │         │
│  ╰─ of 256, budget 180000 ns      87.69 µs      │ 8.821 ms      │ 1.432 ms      │ 405.8 µs      │ 100     │ 100
│                                   2.919 Mitem/s │ 29.01 Kitem/s │ 1.787 Mitem/s │ 630.7 Kitem/s │         │
╰─ match, key and ledger, budget 9 ns  720.6 ns   │ 1.006 µs      │ 758.1 ns      │ 773.1 ns      │ 100     │ 400
";

    #[test]
    fn medians_stand_beside_the_budgets_of_their_names() {
        let timed = |name: &str, median, budget| Timed { name: name.into(), median, budget };
        let expected = [
            timed("answer", 1_401.0, 2_500.0),
            timed("decode a reply of 1", 630.9, 1_200.0),
            timed("decode a reply of 256", 1_432_000.0, 180_000.0),
            timed("match, key and ledger", 758.1, 9.0),
        ];
        let found = parse(PRINTED).unwrap();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found.name, found.budget), (&expected.name, expected.budget));
            assert!((found.median - expected.median).abs() < 1e-6, "{found:?}");
        }
    }

    #[test]
    fn output_of_another_form_is_an_error() {
        assert!(parse("error: no bench\n").is_err());
        assert!(parse("").is_err());
    }
}
