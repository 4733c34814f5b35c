//! The crates that are linked into what is released.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;
use quotagate_workspace::{paths, task};

/// What is built, and what it is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// The name of its file, and of its SBOM.
    pub file: &'static str,
    /// Cargo's package.
    pub package: &'static str,
    /// What it is in a sentence.
    pub description: &'static str,
    /// Rust's names for the systems it is built for.
    targets: &'static [&'static str],
}

/// Everything that contains compiled code. The lists of all architectures are joined, so that they
/// do not depend on what was built.
pub const PRODUCTS: [Product; 3] = [
    Product {
        file: "quotagate",
        package: "quotagate-cli",
        description: "The store and the commands of quotagate",
        targets: &["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"],
    },
    Product {
        file: "libquotagate",
        package: "quotagate-native",
        description: "The native module of quotagate for Envoy",
        targets: &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"],
    },
    Product {
        file: "quotagate-filter",
        package: "quotagate",
        description: "The Wasm filter of quotagate for Envoy",
        targets: &["wasm32-wasip1"],
    },
];

/// A crate's name and version.
pub type Id = (String, String);

/// What Cargo knows about a crate.
#[derive(Debug, Clone)]
pub struct Crate {
    /// Its licence, as an SPDX expression.
    pub licence: String,
    /// Where its source is on this machine.
    pub folder: PathBuf,
    /// Where it is developed.
    pub repository: Option<String>,
    /// Whether it is one of ours.
    pub own: bool,
}

/// The crates of a product: each with those that it uses.
pub type Graph = BTreeMap<Id, BTreeSet<Id>>;

/// The crates that are linked into a product: no macros, build scripts or tests.
///
/// # Errors
/// When Cargo fails.
pub fn of(product: Product) -> Result<Graph> {
    let mut graph = Graph::new();
    for target in product.targets {
        let mut cargo = task::cargo();
        cargo.args(["tree", "--locked", "--package", product.package, "--target", target]);
        cargo.args(["--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", " {p}"]);
        read(&task::printed(&mut cargo)?, &mut graph)?;
    }
    Ok(graph)
}

/// Every crate that may be linked, by name and version.
///
/// # Errors
/// When Cargo fails, or a crate states no licence.
pub fn all() -> Result<BTreeMap<Id, Crate>> {
    let mut crates = BTreeMap::new();
    let targets: BTreeSet<_> = PRODUCTS.iter().flat_map(|product| product.targets).collect();
    for target in targets {
        let mut cargo = MetadataCommand::new();
        let options = ["--locked", "--filter-platform", target].map(str::to_owned);
        cargo.current_dir(paths::root()).other_options(options);
        for package in cargo.exec()?.packages {
            let id = (package.name.to_string(), package.version.to_string());
            let folder = package.manifest_path.parent().map(PathBuf::from);
            let found = Crate {
                own: package.source.is_none(),
                folder: folder.with_context(|| format!("{} has no folder", id.0))?,
                licence: package.license.with_context(|| format!("{} states no licence", id.0))?,
                repository: package.repository,
            };
            crates.insert(id, found);
        }
    }
    Ok(crates)
}

/// Reads lines such as `2 serde v1.0.0 (...)`: the depth in the tree, the name and the version.
fn read(tree: &str, graph: &mut Graph) -> Result<()> {
    let mut above: Vec<Id> = Vec::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (depth, name, version) = (words.next(), words.next(), words.next());
        let depth: usize = depth.context("no depth")?.parse().with_context(|| line.to_owned())?;
        let version = version.and_then(|version| version.strip_prefix('v'));
        let id = (name.context("no name")?.to_owned(), version.context("no version")?.to_owned());
        ensure!(depth <= above.len(), "Cargo's tree has a gap: {line}");
        above.truncate(depth);
        graph.entry(id.clone()).or_default();
        if let Some(user) = above.last() {
            graph.entry(user.clone()).or_default().insert(id.clone());
        }
        above.push(id);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> Id {
        (name.to_owned(), "1.0.0".to_owned())
    }

    #[test]
    fn tree_becomes_a_graph() {
        let tree = "0 a v1.0.0 (/src/a)\n1 b v1.0.0\n2 c v1.0.0\n1 c v1.0.0 (*)\n0 d v1.0.0\n";
        let mut graph = Graph::new();
        read(tree, &mut graph).unwrap();
        let uses = |name| graph[&id(name)].iter().map(|used| used.0.as_str()).collect::<Vec<_>>();
        assert_eq!((uses("a"), uses("b"), uses("c")), (vec!["b", "c"], vec!["c"], vec![]));
        assert_eq!(graph.len(), 4);
        assert!(read("1 a v1.0.0", &mut graph).is_err());
        assert!(read("0 a", &mut graph).is_err());
    }

    #[test]
    fn products_contain_what_is_linked_and_no_macros() {
        let [command, module, filter] = PRODUCTS.map(|product| of(product).unwrap());
        let has = |graph: &Graph, name: &str| graph.keys().any(|id| id.0 == name);
        assert!(has(&command, "redis") && has(&module, "redis") && !has(&filter, "redis"));
        assert!(has(&filter, "proxy-wasm") && !has(&command, "proxy-wasm"));
        assert!([&command, &module, &filter].iter().all(|graph| !has(graph, "serde_derive")));
        let known = all().unwrap();
        for id in [command, module, filter].iter().flat_map(Graph::keys) {
            assert!(known.contains_key(id), "{id:?}");
        }
    }
}
