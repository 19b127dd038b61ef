//! The instruction sets that the kernels are instantiated for, and which one runs.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::lanes::{Kernel, Portable};

/// An instruction set that the kernels are built for. All names exist on every machine; whether
/// the CPU has what a tier asks for is asked once per process. Every tier gives the same bits.
///
/// ```
/// # extern crate topmass_kernels as topmass;
/// use topmass::Tier;
/// assert!(Tier::available().contains(&Tier::Portable));
/// assert_eq!("avx2".parse(), Ok(Tier::Avx2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// Plain Rust, on any CPU. Emulates fused multiply-add exactly, which makes it slow.
    Portable,
    /// x86-64-v3: AVX2, FMA, BMI1, BMI2, LZCNT, POPCNT.
    Avx2,
    /// x86-64-v4: AVX-512 F, BW, CD, DQ, VL on top of AVX2.
    Avx512,
    /// AArch64 Advanced SIMD.
    Neon,
}

/// A name that is no tier's.
///
/// ```
/// # extern crate topmass_kernels as topmass;
/// use topmass::{Tier, UnknownTier};
/// assert_eq!("sse9".parse::<Tier>(), Err(UnknownTier("sse9".to_owned())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTier(pub String);

impl fmt::Display for UnknownTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown tier {:?}: use portable, avx2, avx512 or neon", self.0)
    }
}

impl std::error::Error for UnknownTier {}

impl Tier {
    /// Every tier, the portable one first.
    ///
    /// ```
    /// # extern crate topmass_kernels as topmass;
    /// assert_eq!(topmass::Tier::ALL.map(|tier| tier.name()), ["portable", "avx2", "avx512", "neon"]);
    /// ```
    pub const ALL: [Tier; 4] = [Tier::Portable, Tier::Avx2, Tier::Avx512, Tier::Neon];

    /// The tier's lower-case name, as `TOPMASS_TIER` takes it.
    ///
    /// ```
    /// # extern crate topmass_kernels as topmass;
    /// assert_eq!(topmass::Tier::Avx512.name(), "avx512");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Tier::Portable => "portable",
            Tier::Avx2 => "avx2",
            Tier::Avx512 => "avx512",
            Tier::Neon => "neon",
        }
    }

    /// The tiers that this CPU can run, best last.
    ///
    /// ```
    /// # extern crate topmass_kernels as topmass;
    /// use topmass::Tier;
    /// assert_eq!(Tier::available()[0], Tier::Portable);
    /// ```
    #[must_use]
    pub fn available() -> Vec<Tier> {
        Tier::ALL.into_iter().filter(|&t| Isa::new(t).is_some()).collect()
    }

    /// The tier that runs unless a caller names another: the best one available, or the one that
    /// the environment variable `TOPMASS_TIER` names. Decided once per process; an unknown or
    /// unsupported name there is reported once on standard error, and the best tier runs.
    ///
    /// ```
    /// # extern crate topmass_kernels as topmass;
    /// use topmass::Tier;
    /// assert!(Tier::available().contains(&Tier::detected()));
    /// ```
    #[must_use]
    pub fn detected() -> Tier {
        static DETECTED: OnceLock<Tier> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let best = *Tier::available().last().expect("the portable tier runs everywhere");
            let Some(wanted) = std::env::var_os("TOPMASS_TIER").filter(|v| !v.is_empty()) else {
                return best;
            };
            match wanted.to_string_lossy().parse::<Tier>() {
                Ok(tier) if Isa::new(tier).is_some() => tier,
                Ok(tier) => {
                    eprintln!("topmass: TOPMASS_TIER={tier}, which this CPU lacks; using {best}");
                    best
                }
                Err(unknown) => {
                    eprintln!("topmass: TOPMASS_TIER: {unknown}; using {best}");
                    best
                }
            }
        })
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(name: &str) -> Result<Tier, UnknownTier> {
        Tier::ALL
            .into_iter()
            .find(|t| t.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownTier(name.to_owned()))
    }
}

/// A tier that this CPU was found to have: the proof that its kernels may run.
#[derive(Clone, Copy, Debug)]
pub struct Isa(Token);

#[derive(Clone, Copy, Debug)]
enum Token {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    #[cfg(target_arch = "x86_64")]
    Avx512(pulp::x86::V4),
    #[cfg(target_arch = "aarch64")]
    Neon(pulp::aarch64::Neon),
}

impl Isa {
    /// `None` where the CPU lacks the tier.
    ///
    /// ```
    /// use topmass_kernels::{Isa, Tier};
    /// assert!(Isa::new(Tier::Portable).is_some());
    /// ```
    #[must_use]
    pub fn new(tier: Tier) -> Option<Isa> {
        match tier {
            Tier::Portable => Some(Token::Portable),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => pulp::x86::V3::try_new().map(Token::Avx2),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => pulp::x86::V4::try_new().map(Token::Avx512),
            #[cfg(target_arch = "aarch64")]
            Tier::Neon => pulp::aarch64::Neon::try_new().map(Token::Neon),
            #[allow(unreachable_patterns, reason = "which tiers are left depends on the target")]
            _ => None,
        }
        .map(Isa)
    }

    /// The tier of which this is the proof.
    ///
    /// ```
    /// use topmass_kernels::{Isa, Tier};
    /// assert_eq!(Isa::new(Tier::Portable).unwrap().tier(), Tier::Portable);
    /// ```
    #[must_use]
    pub fn tier(self) -> Tier {
        match self.0 {
            Token::Portable => Tier::Portable,
            #[cfg(target_arch = "x86_64")]
            Token::Avx2(_) => Tier::Avx2,
            #[cfg(target_arch = "x86_64")]
            Token::Avx512(_) => Tier::Avx512,
            #[cfg(target_arch = "aarch64")]
            Token::Neon(_) => Tier::Neon,
        }
    }

    /// Runs a kernel on this tier: the one place where generic code meets an instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Token::Portable => kernel.run(Portable),
            #[cfg(target_arch = "x86_64")]
            Token::Avx2(v3) => v3.vectorize(In { lanes: crate::lanes::Avx2(v3), kernel }),
            #[cfg(target_arch = "x86_64")]
            Token::Avx512(v4) => v4.vectorize(In { lanes: crate::lanes::Avx512(v4), kernel }),
            #[cfg(target_arch = "aarch64")]
            Token::Neon(neon) => neon.vectorize(In { lanes: crate::lanes::Neon(neon), kernel }),
        }
    }
}

/// A kernel about to enter the region compiled for its tier. A struct, not a closure, so that
/// the call can be marked `inline(always)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
struct In<L, K> {
    lanes: L,
    kernel: K,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl<L: crate::lanes::Lanes, K: Kernel> pulp::NullaryFnOnce for In<L, K> {
    type Output = K::Output;

    #[inline(always)]
    fn call(self) -> K::Output {
        self.kernel.run(self.lanes)
    }
}
