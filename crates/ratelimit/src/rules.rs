//! The rules: which limit applies to a descriptor.
//!
//! | part | does |
//! | --- | --- |
//! | `file` | reads the files of envoyproxy/ratelimit |
//! | `yaml` | YAML with lines |
//! | `tree` | the rules as they are written, from a file or from xDS |
//! | `faults` | keeps the first of many faults |
//! | `compile` | checks a tree, and makes the rules of its domain |
//! | `domain` | finds the rule of a descriptor |
//! | `cases` | finds the rules that descriptors of a form may have |
//! | `wildcard` | matches values against patterns |

mod cases;
mod compile;
mod domain;
mod faults;
mod file;
mod tree;
mod wildcard;
mod yaml;

pub use cases::{EntryCase, EntryForm, OtherValues, RuleCase, RuleCases, ValueCase, is_like};
pub use compile::{compile, written_name};
pub use domain::{Rule, RuleDomain, RuleLimit, RuleMatch, replaced};
pub use faults::{BoundedFaults, RuleFault};
pub use file::{
    FileFault, MAX_FILE, RuleFile, SharedDomains, is_rule_file, read_files, read_trees,
};
pub use tree::{DescriptorRule, DomainRules, RateLimitRule};
