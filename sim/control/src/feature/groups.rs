//! Jobs of several groups, each with constraints, ports and sizes of its own, and of several tasks that change places. From dice of its own: no throw
//! in here moves one of the older dice, and half of the seeds have none of it.

use fsm::{
    JobSpec, TaskGroup,
    job::{Constraint, Network, PortAsk},
};

use super::{Feature, Stage, Watch};
use crate::{
    cluster::coverage::{Coverage, Event},
    people::{ShapeJobs, World},
};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x6772_6f75_7073_6131;
/// Groups beside the first.
const MORE: [&str; 2] = ["api", "cache"];
const SIDE_TASK: &str = "side";

/// Jobs of several groups.
pub(super) struct Groups {
    seed: u64,
    /// Dice of the step under way.
    dice: Dice,
}

impl Groups {
    /// Those of a seed; none: each job has one group.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let several = Dice::numbered(seed ^ LABEL, u64::MAX).percent(50);
        several.then(|| Self { seed, dice: Dice::numbered(seed ^ LABEL, u64::MAX - 1) })
    }
}

impl Feature for Groups {
    fn before_step(
        &mut self,
        number: u32,
        _world: &mut World,
        _shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        self.dice = Dice::numbered(self.seed ^ LABEL, u64::from(number));
        None
    }

    /// Makes several groups of a job's one.
    fn shape(&mut self, stage: Stage, spec: &mut JobSpec, coverage: &mut Coverage) {
        if stage != Stage::Groups {
            return;
        }
        let dice = &mut self.dice;
        if dice.percent(25) {
            return;
        }
        for name in MORE {
            if dice.percent(60) {
                let mut group = spec.groups[0].clone();
                group.name = name.into();
                let most = if spec.kind.is_per_node() { 1 } else { 3 };
                group.count = u32::try_from(dice.between(0, most)).expect("small");
                change(&mut group, dice);
                spec.groups.push(group);
            }
        }
        for group in &mut spec.groups {
            if dice.percent(30) {
                let mut side = group.tasks[0].clone();
                side.name = SIDE_TASK.into();
                group.tasks.push(side);
                if dice.percent(50) {
                    group.tasks.reverse();
                }
            }
        }
        if dice.percent(30) {
            spec.groups.reverse();
        }
        if spec.groups.len() > 1 {
            coverage.count(Event::SeveralGroups);
        }
    }
}

/// What a group asks for that the first does not.
fn change(group: &mut TaskGroup, dice: &mut Dice) {
    let constraint = |left: &str, operand: &str, right: &str| Constraint {
        left: left.into(),
        operand: operand.into(),
        right: right.into(),
    };
    match dice.below(6) {
        0 => group.constraints.push(constraint("${meta.rack}", "=", "r1")),
        1 => group.constraints.push(constraint("${meta.rack}", "=", "r2")),
        2 => group.constraints.push(constraint("${attr.kind}", "=", "big")),
        3 => group.constraints.push(constraint("", "distinct_hosts", "true")),
        _ => {}
    }
    match dice.below(4) {
        0 => group.network = None,
        1 => {
            let ports = vec![PortAsk { label: "static".into(), value: 8_081, to: 0 }];
            group.network = Some(Network { ports, names_mode: false });
        }
        _ => {}
    }
    for task in &mut group.tasks {
        task.resources.cpu_mhz = dice.pick(&[500, 200, 900]).unwrap_or(500);
    }
}
