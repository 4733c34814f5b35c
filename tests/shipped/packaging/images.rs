//! The images of the Dockerfile and of the compose file.

use quotagate_support::{paths, tools::ENVOY_VERSION};

use super::{services, strings, text};

#[test]
fn every_image_is_pinned_or_built_here() {
    for (name, service) in services() {
        let image = service["image"].as_str().unwrap();
        match service["build"]["target"].as_str() {
            Some(target) => {
                let file = text("Dockerfile");
                assert!(file.contains(&format!(" AS {target}\n")), "{name}: no target {target}");
            }
            None => assert!(is_pinned(image), "{name}: {image}"),
        }
    }
    let file = text("Dockerfile");
    for line in file.lines().filter_map(|line| line.strip_prefix("FROM ")) {
        let image = line.split_whitespace().next().unwrap();
        assert!(image == "scratch" || is_pinned(image), "Dockerfile: {image}");
    }
    assert!(file.contains(&format!("FROM envoyproxy/envoy:v{ENVOY_VERSION} ")));
}

/// Whether the tag contains a full version.
fn is_pinned(image: &str) -> bool {
    image
        .rsplit_once(':')
        .is_some_and(|(_, tag)| tag.matches('.').count() >= 1 && tag.contains(char::is_numeric))
}

#[test]
fn no_image_runs_as_root() {
    let file = text("Dockerfile");
    // An image with a single file runs nothing.
    let runs = |stage: &&str| !stage.starts_with("scratch ");
    for stage in file.split("\nFROM ").skip(2).filter(runs) {
        let user = stage.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
        assert!(!user.starts_with("root") && !user.starts_with('0'), "{user}");
    }
}

#[test]
fn every_mounted_and_copied_file_exists() {
    for (name, service) in services() {
        for volume in
            strings(&service["volumes"]).into_iter().filter(|volume| volume.starts_with("./"))
        {
            let file = paths::root().join(volume.split(':').next().unwrap());
            assert!(file.is_file(), "{name}: {}", file.display());
        }
    }
    let file = text("Dockerfile");
    for line in file.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        let source = line
            .split_whitespace()
            .find(|word| !word.starts_with("--") && *word != "COPY")
            .unwrap();
        assert!(paths::root().join(source).exists(), "{line}");
    }
}

#[test]
fn envoy_image_has_both_forms_of_the_filter() {
    let file = text("Dockerfile");
    let (_, stage) = file.split_once(" AS envoy\n").unwrap();
    for name in [paths::FILTER, paths::BODIES_FILTER] {
        assert!(
            stage.contains(&format!("COPY --from=build /dist/{name} /dist/{name}\n")),
            "{name}"
        );
    }
    assert!(stage.contains("/dist/libquotagate.so /usr/local/lib/quotagate/libquotagate.so\n"));
    assert!(stage.contains("ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/usr/local/lib/quotagate\n"));
}

#[test]
fn filter_images_are_what_istio_and_envoy_gateway_read() {
    let file = text("Dockerfile");
    for (target, name) in [("filter", paths::FILTER), ("filter-bodies", paths::BODIES_FILTER)] {
        let (_, stage) = file.split_once(&format!("FROM scratch AS {target}\n")).unwrap();
        let lines: Vec<&str> = stage.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(lines, [format!("COPY --from=build /dist/{name} /plugin.wasm")]);
    }
}
