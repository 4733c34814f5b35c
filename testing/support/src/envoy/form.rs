//! The two forms of the filter, and where an Envoy configuration of each holds what tests change.

use std::{
    env,
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{paths, yaml};

/// The variable that selects the form of a whole run.
pub const VARIABLE: &str = "QUOTAGATE_FORM";
/// The path of the one listener's connection manager in the shipped configuration.
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

/// A form of the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The Wasm filter, `quotagate.wasm`, with the store beside Envoy.
    Wasm,
    /// The native module, `libquotagate.so`, with the store's library inside.
    Native,
}

impl Form {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Wasm, Self::Native];

    /// The form of this run: that of [`VARIABLE`], else Wasm.
    ///
    /// # Errors
    /// When the variable names no form.
    pub fn of_run() -> Result<Self> {
        let name = env::var(VARIABLE).unwrap_or_default();
        Self::named(&name).with_context(|| {
            format!("{VARIABLE} is {name:?}: set it to \"wasm\" or \"native\", or unset it")
        })
    }

    fn named(name: &str) -> Option<Self> {
        if name.is_empty() {
            return Some(Self::Wasm);
        }
        Self::ALL.into_iter().find(|form| form.name() == name)
    }

    /// Its name in [`VARIABLE`] and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Native => "native",
        }
    }

    /// Whether a test of what only this form has runs now. If not, the output of the run says so,
    /// even though the test passes.
    ///
    /// # Errors
    /// When [`VARIABLE`] names no form, or nothing can be written.
    pub fn is_under_test(self, what: &str) -> Result<bool> {
        let run = Self::of_run()?;
        if run != self {
            // Not `eprintln`: the test harness hides what that writes in a test that passes.
            writeln!(
                io::stderr(),
                "not run in the form {}: {what} (only {})",
                run.name(),
                self.name()
            )?;
        }
        Ok(run == self)
    }

    /// The filter's name among the HTTP filters.
    #[must_use]
    pub const fn filter(self) -> &'static str {
        match self {
            Self::Wasm => "envoy.filters.http.wasm",
            Self::Native => "envoy.filters.http.dynamic_modules",
        }
    }

    /// The type of the filter's configuration.
    #[must_use]
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Wasm => "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            Self::Native => {
                "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"
            }
        }
    }

    /// The shipped configuration.
    #[must_use]
    pub fn shipped(self) -> PathBuf {
        match self {
            Self::Wasm => paths::envoy_config(),
            Self::Native => paths::native_config(),
        }
    }

    /// The name of a field in the filter state, for access logs.
    #[must_use]
    pub fn filter_state(self, field: &str) -> String {
        match self {
            Self::Wasm => format!("wasm.quotagate.{field}"),
            Self::Native => format!("quotagate.{field}"),
        }
    }

    /// The policy document, from the filter's `typed_config`.
    const fn document(self) -> &'static str {
        match self {
            Self::Wasm => "/typed_config/config/configuration/value",
            Self::Native => "/typed_config/filter_config/value",
        }
    }

    /// The form of one of the HTTP filters; `None` if it is another filter.
    fn of_filter(filter: &Value) -> Option<Self> {
        let name = filter.get("name").and_then(Value::as_str);
        Self::ALL.into_iter().find(|form| name == Some(form.filter()))
    }
}

/// Whether one of the HTTP filters is ours, of either form.
#[must_use]
pub fn is_filter(filter: &Value) -> bool {
    Form::of_filter(filter).is_some()
}

/// The index of the filter among HTTP filters.
///
/// # Errors
/// When it is not there.
pub fn position(filters: &[Value]) -> Result<usize> {
    filters.iter().position(is_filter).context("quotagate is not among the HTTP filters")
}

/// The HTTP connection manager of an Envoy configuration shaped like the shipped one.
///
/// # Errors
/// When it is not there.
pub fn manager(config: &mut Value) -> Result<&mut Value> {
    yaml::at(config, MANAGER)
}

/// The filter within an Envoy configuration shaped like the shipped ones: its entry among the HTTP
/// filters.
///
/// # Errors
/// When it is not there.
pub fn filter(config: &mut Value) -> Result<&mut Value> {
    let filters = yaml::list(manager(config)?, "http_filters")?;
    let index = position(filters)?;
    filters.get_mut(index).context("no filter")
}

/// The form of the filter within an Envoy configuration.
///
/// # Errors
/// When it is not there.
pub fn of(config: &mut Value) -> Result<Form> {
    Form::of_filter(filter(config)?).context("no filter")
}

/// The plugin configuration of the Wasm filter within an Envoy configuration.
///
/// # Errors
/// When the configuration is not one of the Wasm form.
pub fn plugin(config: &mut Value) -> Result<&mut Value> {
    let filter = filter(config)?;
    if Form::of_filter(filter) != Some(Form::Wasm) {
        bail!("the native module has no plugin configuration");
    }
    yaml::at(filter, "/typed_config/config")
}

/// The policy document within an Envoy configuration shaped like the shipped ones.
///
/// # Errors
/// When it is not there.
pub fn document(config: &mut Value) -> Result<&mut Value> {
    let filter = filter(config)?;
    let form = Form::of_filter(filter).context("no filter")?;
    yaml::at(filter, form.document())
}

/// The filter that hands the native module all metadata of a namespace, as text: the module itself
/// reads only the first level.
#[must_use]
pub fn metadata_as_text(namespace: &str) -> Value {
    json!({
        "name": "envoy.filters.http.set_filter_state",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
            "on_request_headers": [{
                "object_key": format!("quotagate.metadata.{namespace}"),
                "factory_key": "envoy.string",
                "format_string": {
                    "text_format_source": {
                        "inline_string": format!("%DYNAMIC_METADATA({namespace})%")
                    },
                    "omit_empty_values": true
                },
                "skip_if_empty": true
            }]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_known_by_name_and_wasm_is_the_default() {
        assert_eq!(Form::named(""), Some(Form::Wasm));
        assert_eq!(Form::named("native"), Some(Form::Native));
        assert_eq!(Form::named("Native"), None);
    }

    #[test]
    fn document_is_found_in_both_shipped_configurations() {
        for form in Form::ALL {
            let mut config = yaml::read(&form.shipped()).unwrap();
            assert_eq!(document(&mut config).unwrap()["domain"], "shop", "{form:?}");
            assert_eq!(plugin(&mut config).is_ok(), form == Form::Wasm);
            let filter = filter(&mut config).unwrap();
            assert_eq!(filter["typed_config"]["@type"], form.type_url());
        }
    }

    #[test]
    fn shipped_configuration_hands_claims_over_as_the_tests_do() {
        let mut config = yaml::read(&Form::Native.shipped()).unwrap();
        let filters = yaml::at(manager(&mut config).unwrap(), "/http_filters").unwrap();
        let shipped = yaml::named(filters, "envoy.filters.http.set_filter_state").unwrap();
        assert_eq!(*shipped, metadata_as_text("envoy.filters.http.jwt_authn"));
    }
}
