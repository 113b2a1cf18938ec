//! Upgrades of a daemon with many clients and exports, and with signals beside them.

use sheave_testkit::process;

use crate::load::Load;
use crate::rig::{Nbd, ONE, Rig, until};

#[test]
fn a_thousand_idle_clients_and_a_hundred_exports_are_taken_over() {
    let export = |number: u32| format!("\n[[export]]\nname = \"e{number}\"\npool = \"a\"\nvolume = \"v\"\n");
    let exports: String = (0..100).map(export).collect();
    let Some(rig) = Rig::start(&format!("{ONE}{exports}")) else { return };
    let load = Load::start(&rig, 0);
    let mut idle: Vec<Nbd> = (0..1000).map(|number| rig.connect(&format!("e{}", number % 100))).collect();
    for _ in 0..2 {
        let told = rig.upgrade();
        assert_eq!(told["clients"], 1001, "{told}");
        load.goes_on();
    }
    for client in &mut idle {
        assert_eq!(client.read(8 << 20, 512).expect("it goes on"), [0; 512]);
    }
    load.end_well(&rig);
    rig.end();
}

#[test]
fn a_reload_right_before_or_after_an_upgrade_is_not_lost() {
    let Some(rig) = Rig::start(ONE) else { return };
    let load = Load::start(&rig, 0);
    let added = |number: usize| {
        let more = (0..=number).map(|at| format!("\n[[export]]\nname = \"r{at}\"\nspec = \"null:size=1M\"\n"));
        std::fs::write(rig.dir.path("c.toml"), format!("{ONE}{}", more.collect::<String>())).expect("written");
    };
    let is_served = |number: usize| Nbd::connect(&rig.dir.path("nbd.sock"), &format!("r{number}")).is_some();
    for round in 0..4 {
        added(2 * round);
        process::signal(rig.pid(), "-HUP");
        rig.upgrade();
        until(&format!("the export of {round}, before\n{}", rig.said()), || is_served(2 * round));
        added(2 * round + 1);
        let begun = rig.begin("upgrade");
        let old = rig.servers().into_iter().find(|pid| Some(*pid) != begun.new);
        old.into_iter().for_each(|pid| process::signal(pid, "-HUP"));
        assert_eq!(begun.end().code, 0, "{}", rig.said());
        until(&format!("the export of {round}, during\n{}", rig.said()), || is_served(2 * round + 1));
        load.goes_on();
    }
    load.end_well(&rig);
    rig.end();
}
