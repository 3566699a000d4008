//! Spreads with shares against Nomad's rule, computed a second time: each placement of 200 random
//! jobs goes where the rule scores highest.

use std::collections::BTreeMap;

use chance::Dice;
use fsm::{
    JobKind, NodeId,
    job::{Spread, SpreadTarget},
};

use super::{Cluster, id, job, node};

const ATTRIBUTES: [&str; 2] = ["rack", "zone"];

/// A random fleet: by node, its values of [`ATTRIBUTES`].
fn fleet(dice: &mut Dice) -> (Cluster, BTreeMap<NodeId, [String; 2]>) {
    let mut cluster = Cluster::new();
    let mut values = BTreeMap::new();
    let (racks, zones) = (2 + dice.below(3), 1 + dice.below(3));
    for number in 1..=6 + dice.below(8) {
        let mut row = node(number);
        let own = [format!("r{}", dice.below(racks)), format!("z{}", dice.below(zones))];
        let mut description = (*row.description).clone();
        for (name, value) in ATTRIBUTES.iter().zip(&own) {
            description.meta.insert((*name).into(), value.as_str().into());
        }
        row.description = description.into();
        row.class = fsm::ClassId(id(number));
        cluster.put_node(row);
        values.insert(NodeId(id(number)), own);
    }
    (cluster, values)
}

/// One or two spreads, each with shares of some values.
fn spreads(dice: &mut Dice) -> Vec<Spread> {
    let count = 1 + usize::from(dice.below(2) == 0);
    let mut out = Vec::new();
    for name in ATTRIBUTES.into_iter().take(count) {
        let mut left = 100;
        let mut targets = Vec::new();
        for number in 0..=dice.below(2) {
            let percent = 10 + u16::try_from(dice.below(u64::from(left - 19))).unwrap();
            left -= percent;
            let value = format!("{}{number}", &name[..1]).as_str().into();
            targets.push(SpreadTarget { value, percent });
            if left < 20 {
                break;
            }
        }
        let weight = 10 + u16::try_from(dice.below(90)).unwrap();
        out.push(Spread {
            attribute: format!("${{meta.{name}}}").as_str().into(),
            weight,
            targets,
        });
    }
    out
}

/// The boost of a node with these values, given the values of what was placed.
fn boost(spreads: &[Spread], count: u32, placed: &[&[String; 2]], own: &[String; 2]) -> f64 {
    let weights: f64 = spreads.iter().map(|spread| f64::from(spread.weight)).sum();
    let mut sum = 0.0;
    for (place, spread) in spreads.iter().enumerate() {
        let listed = |value: &str| spread.targets.iter().find(|target| *target.value == *value);
        let percents: u16 = spread.targets.iter().map(|target| target.percent).sum();
        // A value that is not listed stands for all that are not.
        let group = |value: &str| listed(value).map(|target| target.value.to_string());
        let mine = group(&own[place]);
        let used = placed.iter().filter(|values| group(&values[place]) == mine).count();
        let percent = listed(&own[place]).map_or(100 - percents, |target| target.percent);
        let weight = f64::from(spread.weight) / weights;
        if percent == 0 {
            sum -= weight;
            continue;
        }
        let desired = f64::from(percent) / 100.0 * f64::from(count);
        let used = f64::from(u32::try_from(used).unwrap()) + 1.0;
        sum += (desired - used) / desired * weight;
    }
    sum
}

/// Nomad's mean of bin-packing, anti-affinity and spread.
fn score(
    spreads: &[Spread],
    count: u32,
    placed: &[NodeId],
    values: &BTreeMap<NodeId, [String; 2]>,
    on: NodeId,
) -> f64 {
    let here = u32::try_from(placed.iter().filter(|node| **node == on).count()).unwrap();
    let free = |each: f64, all: f64| 1.0 - each * (f64::from(here) + 1.0) / all;
    let sum = 10f64.powf(free(100.0, 4000.0)) + 10f64.powf(free(64.0, 8192.0));
    let mut parts = vec![(20.0 - sum).clamp(0.0, 18.0) / 18.0];
    if here > 0 {
        parts.push(-(f64::from(here) + 1.0) / f64::from(count));
    }
    let of_placed: Vec<_> = placed.iter().map(|node| &values[node]).collect();
    let boost = boost(spreads, count, &of_placed, &values[&on]);
    if boost != 0.0 {
        parts.push(boost);
    }
    parts.iter().sum::<f64>() / f64::from(u32::try_from(parts.len()).unwrap())
}

/// S8: 200 random spreads.
#[test]
fn every_placement_goes_where_the_rule_scores_highest() {
    for seed in 0..200 {
        let mut dice = Dice::named(seed, "shares");
        let (mut cluster, values) = fleet(&mut dice);
        let mut spec = job(JobKind::Service);
        let count = 4 + u32::try_from(dice.below(12)).unwrap();
        spec.groups[0].count = count;
        spec.groups[0].tasks[0].resources.cpu_mhz = 100;
        spec.groups[0].tasks[0].resources.memory_mb = 64;
        spec.spreads = spreads(&mut dice);
        let plan = cluster.run(&spec);
        assert_eq!(plan.placements.len(), count as usize);
        let mut placed = Vec::new();
        for placement in &plan.placements {
            let of = |on: NodeId| score(&spec.spreads, count, &placed, &values, on);
            let best = values.keys().map(|on| of(*on)).fold(f64::MIN, f64::max);
            let chosen = of(placement.node);
            assert!(chosen > best - 1e-9, "seed {seed}: {chosen} of {best} after {placed:?}");
            placed.push(placement.node);
        }
    }
}

/// S8: of 12 instances a listed rack gets its half; the racks that are not listed share the other
/// one.
#[test]
fn values_without_a_target_share_the_rest() {
    let mut cluster = Cluster::new();
    for number in 1..=9 {
        let mut row = node(number);
        let mut description = (*row.description).clone();
        description.meta.insert("rack".into(), format!("r{}", number % 3 + 1).as_str().into());
        row.description = description.into();
        row.class = fsm::ClassId(id(number % 3));
        cluster.put_node(row);
    }
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 12;
    spec.spreads = vec![Spread {
        attribute: "${meta.rack}".into(),
        weight: 100,
        targets: vec![SpreadTarget { value: "r1".into(), percent: 50 }],
    }];
    let plan = cluster.run(&spec);
    let mut counts = BTreeMap::new();
    for placement in &plan.placements {
        let rack = cluster.state.nodes().get(&placement.node).unwrap().description.meta["rack"]
            .to_string();
        *counts.entry(rack).or_insert(0) += 1;
    }
    assert_eq!(counts.values().sum::<i32>(), 12);
    let listed = counts["r1"];
    assert!((5..=6).contains(&listed), "{counts:?}");
}
