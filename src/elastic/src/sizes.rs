//! Which types of a pool may be made for a need, the first choice first.

use std::{cmp::Reverse, sync::Arc};

use fsm::{
    Text,
    pool::{InstancePool, InstanceType},
    resources::Resources,
};

/// The order in which types are preferred: cheaper, then more memory, more cpu, more disk, then the
/// name (Arvados' order of types of one price).
fn order(kind: &InstanceType) -> impl Ord + use<> {
    (
        kind.price_micro,
        Reverse(kind.memory_mb),
        Reverse(kind.cpu),
        Reverse(kind.disk_mb),
        kind.name.clone(),
    )
}

/// The types that `fits` takes, the first choice first, up to the pool's price factor times the
/// price of the cheapest.
pub fn candidates(
    pool: &InstancePool,
    mut fits: impl FnMut(&InstanceType) -> bool,
) -> Vec<&Arc<InstanceType>> {
    let mut kinds: Vec<_> = pool.types.values().filter(|kind| fits(kind)).collect();
    kinds.sort_by_cached_key(|kind| order(kind));
    let Some(cheapest) = kinds.first().map(|kind| u128::from(kind.price_micro)) else {
        return kinds;
    };
    let dearest = cheapest * u128::from(pool.price_factor_milli);
    kinds.retain(|kind| u128::from(kind.price_micro) * 1_000 <= dearest);
    kinds
}

/// Why no type has room for so much: what the largest has of what is lacking.
pub fn too_small(pool: &InstancePool, asked: Resources) -> Text {
    let kinds = || pool.types.values().map(|kind| kind.resources());
    let memory = kinds().map(|kind| kind.memory_mb).max();
    let cpu = kinds().map(|kind| kind.cpu_mhz).max();
    let disk = kinds().map(|kind| kind.disk_mb).max();
    let dimensions = [
        ("memory", "MiB", asked.memory_mb, memory),
        ("cpu", "MHz", asked.cpu_mhz, cpu),
        ("disk", "MiB", asked.disk_mb, disk),
    ];
    for (name, unit, asked, has) in dimensions {
        let has = has.unwrap_or(0);
        if has < asked {
            return format!(
                "no type of pool \"{}\" fits: {asked} {unit} of {name} are asked, the largest type \
                 has {has}",
                pool.name
            )
            .into();
        }
    }
    format!("no type of pool \"{}\" has enough of everything that is asked", pool.name).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{kind, pool};

    fn names(pool: &InstancePool, fits: impl FnMut(&InstanceType) -> bool) -> Vec<String> {
        candidates(pool, fits).iter().map(|kind| kind.name.to_string()).collect()
    }

    /// AR-31 (the cheapest type that fits; ties by memory, cpu, disk, name; the list stops at the
    /// price factor).
    #[test]
    fn the_cheapest_that_fits_comes_first_up_to_the_price_factor() {
        let mut pool = pool("p", 9);
        pool.price_factor_milli = 1_500;
        let types = [
            ("dear", 1_501, 9, 9, 9),
            ("at-factor", 1_500, 9, 9, 9),
            ("b", 1_000, 10, 10, 10),
            ("a", 1_000, 10, 10, 10),
            ("more-disk", 1_000, 10, 10, 11),
            ("more-cpu", 1_000, 11, 10, 1),
            ("more-memory", 1_000, 1, 11, 1),
            ("cheap-and-small", 1, 1, 1, 1),
        ];
        pool.types = types
            .into_iter()
            .map(|(name, price_micro, cpu, memory_mb, disk_mb)| {
                let kind = InstanceType { price_micro, cpu, memory_mb, disk_mb, ..kind(name) };
                (name.into(), Arc::new(kind))
            })
            .collect();
        let wanted = ["more-memory", "more-cpu", "more-disk", "a", "b", "at-factor"];
        assert_eq!(names(&pool, |kind| kind.memory_mb > 1), wanted);
        assert_eq!(names(&pool, |_| true), ["cheap-and-small"], "the others cost too much");
        assert_eq!(names(&pool, |_| false), Vec::<String>::new());
        let asked = Resources { cpu_mhz: 1, memory_mb: 40, disk_mb: 1 };
        let why = "no type of pool \"p\" fits: 40 MiB of memory are asked, the largest type has 11";
        assert_eq!(&*too_small(&pool, asked), why);
    }
}
