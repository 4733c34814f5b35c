//! A comparison as text for people.

use std::fmt;

use quotagate_quota::config::CounterPart;
use serde_json::Value;

use super::{
    DocumentComparison, DocumentDiff, FieldDiff, Orphan, PolicyChange, PolicyDiff, QuotaPair,
    UnitKind,
};

impl fmt::Display for DocumentComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.documents.iter().try_for_each(|document| write!(f, "{document}"))?;
        for domain in &self.added {
            writeln!(f, "domain {domain}: added")?;
        }
        for domain in &self.removed {
            writeln!(
                f,
                "domain {domain}: removed. Its dials and runtime overrides reach nobody. Its counters end \
                 with their windows, and its slots are free once their requests end"
            )?;
        }
        for domain in &self.ambiguous {
            writeln!(
                f,
                "domain {domain}: not compared, because a file has several documents of it. Write each \
                 pair into files of its own, and compare these"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for DocumentDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.old_domain {
            Some(old) => writeln!(f, "domain {old} -> {}", self.domain)?,
            None => writeln!(f, "domain {}", self.domain)?,
        }
        let is_unchanged = |policy: &&PolicyDiff| policy.change == PolicyChange::Unchanged;
        for policy in self.policies.iter().filter(|policy| !is_unchanged(policy)) {
            write!(f, "{policy}")?;
        }
        let unchanged: Vec<_> =
            self.policies.iter().filter(is_unchanged).map(|policy| &*policy.policy).collect();
        if !unchanged.is_empty() {
            writeln!(f, "  unchanged: {}", unchanged.join(", "))?;
        }
        if self.may_rename() {
            writeln!(
                f,
                "  if a policy that is added replaces one that is removed, its counts start from zero"
            )?;
        }
        if !self.settings.is_empty() {
            writeln!(f, "  outside of policies:")?;
        }
        for setting in &self.settings {
            write!(f, "    {}", setting.path)?;
            match setting.effect {
                Some(effect) => writeln!(f, ": {effect}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for PolicyDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let old_name = self.old_name.as_ref().unwrap_or(&self.policy);
        match &self.old_name {
            Some(old) => write!(f, "  {old} -> {}: ", self.policy)?,
            None => write!(f, "  {}: ", self.policy)?,
        }
        f.write_str(match self.change {
            PolicyChange::Unchanged => "unchanged",
            PolicyChange::KeepsCount => "keeps its count",
            PolicyChange::KeepsPart => "keeps a part of its counts, and the rest starts from zero",
            PolicyChange::StartsFromZero => "starts from zero",
            PolicyChange::Added => "added, starts from zero",
            PolicyChange::Removed => match self.old_units {
                UnitKind::Slot => "removed, its slots are free once their requests end",
                UnitKind::Windowed => "removed, its counters end with their windows",
            },
        })?;
        let differs: Vec<_> = self.differs.iter().map(|part| words(*part)).collect();
        if !differs.is_empty() {
            write!(f, " (differs: {})", differs.join(", "))?;
        }
        writeln!(f)?;
        self.fields.iter().try_for_each(|field| writeln!(f, "    {field}"))?;
        match (self.counts_twice, self.quota) {
            (Some(QuotaPair { old, new }), _) => {
                let of = |units| match units {
                    _ if self.old_units == self.new_units => "",
                    UnitKind::Slot => " at once",
                    UnitKind::Windowed => " in a window",
                };
                writeln!(
                    f,
                    "    counts twice while both documents run: the old counter grants {old}{}, and the new one {new}{}",
                    of(self.old_units),
                    of(self.new_units)
                )?;
            }
            (None, Some(QuotaPair { old, new }))
                if new < old && self.change == PolicyChange::KeepsCount =>
            {
                match self.new_units {
                    UnitKind::Slot => writeln!(
                        f,
                        "    a caller that holds {new} slots or more gets no more until requests end"
                    ),
                    UnitKind::Windowed => writeln!(
                        f,
                        "    a caller that has used {new} or more is refused until units return"
                    ),
                }?;
            }
            _ => {}
        }
        for orphan in &self.orphans {
            let what = match orphan {
                Orphan::Dial => "a dial",
                Orphan::Overrides => "runtime overrides",
                Orphan::SomeOverrides => {
                    "runtime overrides of partitions that are written in another way now"
                }
            };
            writeln!(f, "    orphaned: {what} of {old_name}, if any is set")?;
        }
        Ok(())
    }
}

impl fmt::Display for FieldDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, old, new } = self;
        let side = |value: &Option<Value>| match value {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "(left out)".to_owned(),
        };
        match (old, new) {
            (None, None) => write!(f, "{field} differs"),
            _ => write!(f, "{field}: {} -> {}", side(old), side(new)),
        }
    }
}

/// What a part of a counter is called in text.
fn words(part: CounterPart) -> &'static str {
    match part {
        CounterPart::Domain => "domain",
        CounterPart::Prefix => "prefix of keys",
        CounterPart::Name => "name",
        CounterPart::Partition => "partition",
        CounterPart::DigestKey => "key of digests",
        CounterPart::Window => "window",
        CounterPart::WindowKind => "kind of window",
        CounterPart::Stagger => "stagger",
    }
}
