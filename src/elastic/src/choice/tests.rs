//! The choice against every way there is, and what it costs.

#![expect(clippy::unwrap_used, reason = "tests")]

use chance::Dice;
use fsm::{pool::InstanceType, testing::job_key};

use super::*;
use crate::testing::{kind, pool};

/// A pool of types by cpu, memory and price.
fn priced(types: &[(u64, u64, u64)]) -> InstancePool {
    let mut pool = pool("p", 100);
    pool.price_factor_milli = 1_000_000;
    let named = types.iter().enumerate().map(|(number, (cpu, memory_mb, price_micro))| {
        let name: Text = format!("t{number}").into();
        let (cpu, memory_mb, price_micro) = (*cpu, *memory_mb, *price_micro);
        (name.clone(), InstanceType { cpu, memory_mb, price_micro, ..kind(&name) }.into())
    });
    pool.types = named.collect();
    pool
}

/// Instances by cpu, memory and count.
fn needs(pool: &InstancePool, asked: &[(u64, u64, u32)]) -> Vec<Need> {
    let of = |(cpu_mhz, memory_mb, count): &(u64, u64, u32)| {
        let resources = Resources { cpu_mhz: *cpu_mhz, memory_mb: *memory_mb, disk_mb: 1 };
        let fitting =
            pool.types.values().filter(|kind| resources.exceeds(kind.resources()).is_none());
        Need {
            group: "g".into(),
            resources,
            count: *count,
            per_machine_max: u32::MAX,
            ports: BTreeSet::new(),
            types: fitting.map(|kind| kind.name.clone()).collect(),
            why_none: None,
        }
    };
    asked.iter().map(of).collect()
}

fn choose(pool: &InstancePool, needs: &[Need], budget: Budget) -> Chosen {
    let jobs: Vec<JobKey> = (0..needs.len()).map(|number| job_key(&format!("j{number}"))).collect();
    let overhead = Overhead::default();
    let mut choice = Choice::new(pool, &overhead);
    for (need, job) in needs.iter().zip(&jobs) {
        choice.add(need, (job, need.count), |_| true);
    }
    choice.machines(budget)
}

const ANY: Budget = Budget { most: usize::MAX, price_micro: None };

fn cost(pool: &InstancePool, chosen: &Chosen) -> u64 {
    chosen.machines.iter().map(|(kind, _)| pool.types[kind].price_micro).sum()
}

/// The least that single instances may cost, by their sets: a machine for each set that one type
/// holds.
fn least(pool: &InstancePool, needs: &[Need]) -> u64 {
    let all = (1_usize << needs.len()) - 1;
    let of_set = |set: usize| {
        let inside = || needs.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
        let sum = inside().fold(Resources::default(), |sum, (_, need)| sum.plus(need.resources));
        let fits = |kind: &&Arc<InstanceType>| sum.exceeds(kind.resources()).is_none();
        pool.types.values().filter(fits).map(|kind| kind.price_micro).min()
    };
    let mut best = vec![0_u64];
    for set in 1..=all {
        let mut least = u64::MAX;
        let mut part = set;
        while part > 0 {
            if let Some(price) = of_set(part) {
                least = least.min(price + best[set & !part]);
            }
            part = (part - 1) & set;
        }
        best.push(least);
    }
    best[all]
}

/// Six needs and four types, drawn by lot.
#[test]
fn few_needs_get_the_cheapest_machines_there_are() {
    let (mut dearest, mut most) = (0, 0);
    for seed in 0..300 {
        let mut dice = Dice::new(seed);
        let mut type_of = |low, price| {
            (dice.between(low, 2_000), dice.between(low, 2_000), dice.between(1, price))
        };
        // The last one has room for any of them.
        let types = [type_of(400, 9), type_of(400, 9), type_of(400, 9), type_of(900, 20)];
        let pool = priced(&types);
        let asked: Vec<_> =
            (0..6).map(|_| (dice.between(100, 900), dice.between(100, 900), 1)).collect();
        let needs = needs(&pool, &asked);
        let chosen = choose(&pool, &needs, ANY);
        assert_eq!(cost(&pool, &chosen), least(&pool, &needs), "{types:?} {asked:?} {chosen:?}");
        dearest = dearest.max(cost(&pool, &chosen));
        most = most.max(chosen.steps);
    }
    assert!(dearest > 9, "it takes several machines");
    assert!(most <= 8_000, "{most} steps");
}

#[test]
fn the_best_type_depends_on_how_many_instances_there_are() {
    // One cpu for 1.0, two for 1.2, eight for 4.4.
    let pool = priced(&[(1_000, 99_999, 1_000), (2_000, 99_999, 1_200), (8_000, 99_999, 4_400)]);
    for (count, price, machines) in [
        (1, 1_000, 1),
        (2, 1_200, 1),
        (3, 2_200, 2),
        (4, 2_400, 2),
        (7, 4_400, 1),
        (8, 4_400, 1),
        (9, 5_400, 2),
        (10, 5_600, 2),
        (500, 62 * 4_400 + 2_400, 64),
        (8_000, 1_000 * 4_400, 1_000),
    ] {
        let needs = needs(&pool, &[(1_000, 1, count)]);
        let chosen = choose(&pool, &needs, ANY);
        assert_eq!((cost(&pool, &chosen), chosen.machines.len()), (price, machines), "{count}");
    }
}

/// Where nothing has a price, fewer machines are better; of one price the first choice counts.
#[test]
fn without_prices_few_machines_are_made() {
    let pool = priced(&[(1_000, 9_000, 0), (4_000, 4_000, 0)]);
    let needs = needs(&pool, &[(1_000, 1, 40)]);
    assert_eq!(choose(&pool, &needs, ANY).machines.len(), 10);
    let pool = priced(&[(1_000, 9_000, 100), (2_000, 9_000, 200)]);
    let needs = self::needs(&pool, &[(1_000, 1, 4)]);
    let chosen = choose(&pool, &needs, ANY).machines;
    assert!(chosen.iter().all(|(kind, _)| &**kind == "t0"), "{chosen:?}");
}

/// There are too many ways, and what serves most for its price is made, not the cheapest for each.
#[test]
fn a_search_that_is_given_up_costs_no_more_than_its_steps() {
    let types = [(500, 500, 1_000), (1_000, 1_000, 1_900), (1_500, 1_500, 2_700)];
    let pool = priced(&[&types[..], &[(2_000, 2_000, 2_000)]].concat());
    let asked: Vec<_> = (0..6).map(|size| (100 + size, 200 - size, 2)).collect();
    let chosen = choose(&pool, &needs(&pool, &asked), ANY);
    assert!(chosen.steps > exact::EXACT_STEPS_MAX, "{} steps: it was not given up", chosen.steps);
    assert_eq!(cost(&pool, &chosen), 3_000, "{chosen:?}");
}

/// However much waits: every need is of its own size, on 64 types.
#[test]
fn the_steps_of_a_decision_are_bounded() {
    let mut dice = Dice::new(7);
    let types: Vec<_> =
        (1..=64).map(|size| (size * 500, size * 500, size * 50 + dice.between(0, 40))).collect();
    let pool = priced(&types);
    let asked: Vec<_> = (0..10_000).map(|size| (50 + size, 50 + dice.between(0, 400), 1)).collect();
    let needs = needs(&pool, &asked);
    let chosen = choose(&pool, &needs, Budget { most: 64, price_micro: None });
    assert_eq!((chosen.machines.len(), chosen.is_full), (64, true));
    let bound = STEPS_MAX + exact::EXACT_STEPS_MAX;
    let filled = 64 * u32::try_from(LOTS_LOOKED_AT_MAX).unwrap();
    assert!(chosen.steps <= bound + filled, "{} steps", chosen.steps);
    // Nine needs on as many types are too many ways, however few instances they are.
    let asked: Vec<_> = (0..9).map(|size| (100 + size, 200 - size, 1)).collect();
    let chosen = choose(&pool, &self::needs(&pool, &asked), ANY);
    assert!(chosen.steps <= bound, "{} steps", chosen.steps);
}
