package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

// The model must keep what is certain, and must not claim what is uncertain.
func TestContents(t *testing.T) {
	const key = "file"
	write := func(seed uint64) func(contents) {
		return func(c contents) { c.written(key, seed, true) }
	}
	synced := func(seed uint64) func(contents) {
		return func(c contents) { c[key] = &item{seeds: []uint64{seed}} }
	}
	unanswered := func(seed uint64) func(contents) {
		return func(c contents) { c.written(key, seed, false) }
	}
	unstaged, powerLoss := contents.synced, contents.powerLost
	for _, c := range []struct {
		name  string
		steps []func(contents)
		want  []uint64
	}{
		{"synced", []func(contents){synced(1), powerLoss}, []uint64{1}},
		{"written", []func(contents){synced(1), write(2), write(3)}, []uint64{3}},
		{"written, then a power loss", []func(contents){synced(1), write(2), write(3), powerLoss}, []uint64{1, 2, 3}},
		{"written for the first time, then a power loss", []func(contents){write(2), powerLoss}, []uint64{site.Never, 2}},
		{"written and unstaged, then a power loss", []func(contents){synced(1), write(2), unstaged, powerLoss}, []uint64{2}},
		{"a power loss, then unstaged", []func(contents){synced(1), write(2), powerLoss, unstaged}, []uint64{1, 2}},
		{"interrupted by a power loss", []func(contents){synced(1), unanswered(2), powerLoss}, []uint64{1, 2}},
		{"synced over what was uncertain", []func(contents){synced(1), unanswered(2), synced(3), powerLoss}, []uint64{3}},
		{"written over what was uncertain", []func(contents){unanswered(2), powerLoss, write(3)}, []uint64{3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := contents{}
			for _, step := range c.steps {
				step(all)
			}
			copied := all.copied()
			all[key].seeds[0]++ // the copy is independent
			if diff := cmp.Diff(c.want, copied[key].now()); diff != "" {
				t.Errorf("possible data (-want +got):\n%s", diff)
			}
		})
	}
}
