//! Reads Prometheus' text format, as far as tests ask: one sample by its name and labels.

/// The samples of a scrape.
#[derive(Debug, Clone)]
pub struct Samples(String);

impl Samples {
    /// Reads this page.
    #[must_use]
    pub fn new(page: String) -> Self {
        Self(page)
    }

    /// The whole page.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The value of the sample of this name with exactly these labels, in any order.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut wanted: Vec<String> = labels.iter().map(|(n, v)| format!("{n}=\"{v}\"")).collect();
        wanted.sort_unstable();
        self.0.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (found, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.split_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            let mut found: Vec<&str> = found.split(',').filter(|label| !label.is_empty()).collect();
            found.sort_unstable();
            (found == wanted).then(|| value.trim().parse().ok()).flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_is_found_by_name_and_all_its_labels() {
        let page = "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\"} 4\nab 5\na{} 6\n";
        let samples = Samples::new(page.to_owned());
        assert_eq!(samples.value("a", &[("y", "2"), ("x", "1")]), Some(3.0));
        assert_eq!(samples.value("a", &[("x", "1")]), Some(4.0));
        assert_eq!(samples.value("a", &[]), Some(6.0));
        assert_eq!(samples.value("ab", &[]), Some(5.0));
        assert_eq!(samples.value("a", &[("x", "2")]), None);
    }
}
