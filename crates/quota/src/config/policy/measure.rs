//! The tokens of a request, and their cost in units.

use quotagate_protocol::MAX_UNITS;

/// The tokens of a request and its response. `None` where the response does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// All tokens that went in, cached ones included.
    pub input: Option<u64>,
    /// Those of `input` that came out of a cache.
    pub cached_input: Option<u64>,
    /// All tokens that came out, reasoning included.
    pub output: Option<u64>,
    /// The total as the provider states it.
    pub total: Option<u64>,
}

/// Which tokens count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The total as stated, else input and output.
    Total,
    /// The input, cached tokens included.
    Input,
    /// The output.
    Output,
    /// A weighted sum.
    Weighted(Weights),
}

/// The cost of one token of each kind, in billionths of a unit: so 0.1 is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    input: u64,
    cached_input: u64,
    output: u64,
}

/// The parts of a unit that weights are rounded to.
const PARTS: f64 = 1e9;

impl Weights {
    /// Weights, each finite and at least 0, or `None`. Cached tokens count as input if they have no
    /// weight of their own.
    pub fn new(input: f64, cached_input: Option<f64>, output: f64) -> Option<Self> {
        let parts = |weight: f64| {
            // The conversion saturates.
            (weight.is_finite() && weight >= 0.0).then(|| (weight * PARTS).round() as u64)
        };
        Some(Self {
            input: parts(input)?,
            cached_input: parts(cached_input.unwrap_or(input))?,
            output: parts(output)?,
        })
    }

    /// Whether tokens of every kind cost nothing.
    pub const fn are_zero(&self) -> bool {
        self.input == 0 && self.cached_input == 0 && self.output == 0
    }

    /// The sum, rounded up.
    fn units(&self, input: u64, cached: u64, output: u64) -> u64 {
        let counted = [
            (input.saturating_sub(cached), self.input),
            (cached, self.cached_input),
            (output, self.output),
        ];
        let parts = counted.map(|(tokens, weight)| u128::from(tokens) * u128::from(weight));
        let sum = parts.into_iter().fold(0_u128, u128::saturating_add);
        u64::try_from(sum.div_ceil(PARTS as u128)).map_or(MAX_UNITS, |units| units.min(MAX_UNITS))
    }
}

impl Measure {
    /// The cost in units, 0 to [`MAX_UNITS`]. `None` if the usage does not say.
    ///
    /// A provider that states an input and no output means an output of 0: embeddings have none,
    /// and Gemini leaves out zeros.
    pub fn units(&self, usage: &TokenUsage) -> Option<u64> {
        let output = usage.output.or(usage.input.map(|_| 0));
        match self {
            Self::Total => usage.total.or_else(|| {
                let sum = usage.input?.saturating_add(output?);
                Some(sum.min(MAX_UNITS))
            }),
            Self::Input => usage.input,
            Self::Output => output,
            Self::Weighted(weights) => {
                let cached = usage.cached_input.unwrap_or_default();
                Some(weights.units(usage.input?, cached, output?))
            }
        }
    }
}
