//! SBOMs in CycloneDX: what is linked into the command, the module and the filter.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use cyclonedx_bom::{
    external_models::{
        date_time::DateTime,
        normalized_string::NormalizedString,
        spdx::SpdxExpression,
        uri::{Purl, Uri},
    },
    models::{
        bom::{Bom, SpecVersion},
        component::{Classification, Component, Components},
        dependency::{Dependencies, Dependency},
        external_reference::{self, ExternalReference, ExternalReferenceType, ExternalReferences},
        license::{LicenseChoice, Licenses},
        metadata::Metadata,
    },
    validation::Validate,
};

use crate::{
    crates::{self, Crate, Graph, Id, PRODUCTS, Product},
    parts::Parts,
};

/// The version of CycloneDX.
const VERSION: SpecVersion = SpecVersion::V1_5;

/// Writes the SBOM of each product.
///
/// # Errors
/// When Cargo fails, or a file cannot be written.
pub fn write(parts: &Parts, known: &BTreeMap<Id, Crate>, folder: &Path) -> Result<()> {
    for product in PRODUCTS {
        let bom = list(parts, product, &crates::of(product)?, known)?;
        let mut json = Vec::new();
        bom.output_as_json(&mut json, VERSION).context("cannot write CycloneDX")?;
        let name = format!("{}-{}.cdx.json", product.file, parts.version);
        fs::write(folder.join(&name), json).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}

/// The SBOM of a product. It has the time of the commit, and no serial number, which would have to
/// be random.
fn list(
    parts: &Parts,
    product: Product,
    graph: &Graph,
    known: &BTreeMap<Id, Crate>,
) -> Result<Bom> {
    let root = (product.package.to_owned(), parts.version.clone());
    ensure!(graph.contains_key(&root), "Cargo did not list {}", product.package);
    let mut subject = Component::new(
        Classification::Application,
        product.file,
        &parts.version,
        Some(reference(&root)),
    );
    subject.description = Some(NormalizedString::new(product.description));
    let used = graph.keys().filter(|id| **id != root);
    let components = used.map(|id| component(id, known)).collect::<Result<Vec<_>>>()?;
    let dependencies = graph.iter().map(|(id, used)| Dependency {
        dependency_ref: reference(id),
        dependencies: used.iter().map(reference).collect(),
    });
    let time = jiff::Timestamp::from_second(i64::try_from(parts.epoch)?)?.to_string();
    let time = DateTime::try_from(time.clone()).with_context(|| time)?;
    let bom = Bom {
        serial_number: None,
        spec_version: VERSION,
        metadata: Some(Metadata {
            timestamp: Some(time),
            component: Some(subject),
            ..Metadata::default()
        }),
        components: Some(Components(components)),
        dependencies: Some(Dependencies(dependencies.collect())),
        ..Bom::default()
    };
    let checked = bom.validate_version(VERSION);
    ensure!(checked.passed(), "the SBOM of {} is not CycloneDX: {checked:?}", product.file);
    Ok(bom)
}

fn component(id: &Id, known: &BTreeMap<Id, Crate>) -> Result<Component> {
    let (name, version) = id;
    let found = known.get(id).with_context(|| format!("Cargo does not know {name}"))?;
    let mut component = Component::new(Classification::Library, name, version, Some(reference(id)));
    // Old manifests write MIT/Apache-2.0.
    let licence = SpdxExpression::parse_lax(found.licence.clone())
        .with_context(|| format!("the licence of {name}"))?;
    component.licenses = Some(Licenses(vec![LicenseChoice::Expression(licence)]));
    if !found.own {
        component.purl = Some(Purl::new("cargo", name, version)?);
    }
    component.external_references = found.repository.as_deref().map(|repository| {
        let uri = external_reference::Uri::Url(Uri::new(repository));
        ExternalReferences(vec![ExternalReference::new(ExternalReferenceType::Vcs, uri)])
    });
    Ok(component)
}

/// What the SBOM calls a crate.
fn reference((name, version): &Id) -> String {
    format!("{name}@{version}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, testing};
    use std::collections::BTreeSet;

    #[test]
    fn lists_are_valid_and_the_same_each_time() {
        let (built, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let parts = testing::parts(built.path(), &[Architecture::X86_64]);
        let known = crates::all().unwrap();
        let lists = || {
            write(&parts, &known, folder.path()).unwrap();
            PRODUCTS.map(|product| {
                let name = format!("{}-{}.cdx.json", product.file, parts.version);
                fs::read(folder.path().join(name)).unwrap()
            })
        };
        let one = lists();
        assert_eq!(one, lists());
        let command = Bom::parse_from_json(one[0].as_slice()).unwrap();
        assert!(command.validate_version(VERSION).passed());
        assert_eq!(command.serial_number, None);
        let time = command.metadata.unwrap().timestamp.unwrap();
        assert!(time.to_string().starts_with("2023-11-14T22:13:20"), "{time}");
        let components = command.components.unwrap().0;
        let ring = components.iter().find(|one| &*one.name == "ring").unwrap();
        assert!(ring.purl.as_ref().unwrap().as_ref().starts_with("pkg:cargo/ring@0."));
        let references: BTreeSet<_> =
            components.iter().map(|one| one.bom_ref.clone().unwrap()).collect();
        let used = command.dependencies.unwrap().0.into_iter().flat_map(|one| one.dependencies);
        used.for_each(|one| assert!(references.contains(&one), "{one}"));
    }
}
