package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

// The oracle must neither forget what is certain nor be certain of what is not.
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
	unstaged, powerCut := contents.synced, contents.cutOff
	for _, c := range []struct {
		name  string
		steps []func(contents)
		want  []uint64
	}{
		{"synced", []func(contents){synced(1), powerCut}, []uint64{1}},
		{"written", []func(contents){synced(1), write(2), write(3)}, []uint64{3}},
		{"written, then a power cut", []func(contents){synced(1), write(2), write(3), powerCut}, []uint64{1, 2, 3}},
		{"written for the first time, then a power cut", []func(contents){write(2), powerCut}, []uint64{site.Never, 2}},
		{"written and unstaged, then a power cut", []func(contents){synced(1), write(2), unstaged, powerCut}, []uint64{2}},
		{"a power cut, then unstaged", []func(contents){synced(1), write(2), powerCut, unstaged}, []uint64{1, 2}},
		{"cut off by the power", []func(contents){synced(1), unanswered(2), powerCut}, []uint64{1, 2}},
		{"synced over what was uncertain", []func(contents){synced(1), unanswered(2), synced(3), powerCut}, []uint64{3}},
		{"written over what was uncertain", []func(contents){unanswered(2), powerCut, write(3)}, []uint64{3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := contents{}
			for _, step := range c.steps {
				step(all)
			}
			copied := all.copied()
			all[key].seeds[0]++ // the copy is one
			if diff := cmp.Diff(c.want, copied[key].now()); diff != "" {
				t.Errorf("may be read (-want +got):\n%s", diff)
			}
		})
	}
}
