package spdktest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// TestReplayLvols replays lvols, and sessions of a host on exported ones.
func TestReplayLvols(t *testing.T) {
	r := newReplay(t)
	testkit.Must(t, os.Truncate(filepath.Join(r.target.config.Root, "var/tmp/disk.img"), 1<<30))
	long := func() { r.clock.pass(5 * time.Second) }
	restart := func(p *Process) func() {
		return func() {
			testkit.Must(t, p.Restart())
			delete(r.conns, p)
		}
	}
	write := func(mib, at int64) func() {
		return func() {
			d := testkit.Value(r.target.OpenLvol("lvs0/v1"))(t)
			testkit.Value(d.WriteAt(make([]byte, mib<<20), at<<20))(t)
		}
	}
	at := Address{"TCP", "127.0.0.1", "4420"}
	off := map[string]func(){
		"target rename and restart: aio":                              restart(r.target),
		"target sessions: v1 after 3 MiB were written":                write(3, 0),
		"target allow_any_host: controllers after its reconnect":      long,
		"target allow_any_host: controllers after a while":            long,
		"initiator allow_any_host: controller after the reset":        long,
		"initiator fence: controller":                                 long,
		"target fence: controllers after add_host":                    long,
		"target two paths: controllers 2 s later":                     long,
		"target two paths: remove_host with two sessions":             long,
		"initiator two paths: detach the IPv6 path":                   long,
		"target exported lvol: second snapshot":                       write(1, 0),
		"target inflate: s1":                                          write(2, 0),
		"target inflate: v1 before":                                   write(1, 4),
		"target inflate: s1 has no clones":                            write(1, 0),
		"target lost hosts: controllers after the host was killed":    restart(r.initiator),
		"target lost hosts: controllers after the keep-alive timeout": func() { r.network.SetReach(at, Dropped) },
		"target lost hosts: remove_host of a hanging host": func() {
			r.network.SetReach(at, Open)
			long()
		},
		"target restart: subsystem right after": restart(r.target),
		"target restart: controllers":           long,
	}
	const order = "which of two paths reconnects first differs between recordings"
	excuse := map[string]string{"target exported lvol: sessions stay": order, "initiator exported lvol: its controller": order}
	if n := r.run("lvol-rpc.jsonl", off, excuse, map[string]time.Duration{}); n != 324 {
		t.Errorf("%d records, want 324", n)
	}
}
