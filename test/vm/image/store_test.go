package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func store(t *testing.T) *Store {
	t.Helper()
	s := testkit.Value(Open(filepath.Join(t.TempDir(), "vm"), t.Logf))(t)
	return s
}

// Concurrent users create an entry once, and all see it complete.
func TestOnceCreatesEntryOnce(t *testing.T) {
	s := store(t)
	half := filepath.Join(s.dir, packagesDir, "key"+unfinished)
	testkit.Must(t, os.MkdirAll(filepath.Join(half, "of a run that was killed"), 0o755))
	var made atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			err := s.locked(t.Context(), func() error {
				dir, err := s.once(packagesDir, "key", func(dir string) error {
					made.Add(1)
					return os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
				})
				entries, _ := os.ReadDir(dir)
				if len(entries) != 1 {
					t.Errorf("got %s with entries %v, want one", dir, entries)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("created %d times, want 1", made.Load())
	}
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unfinished directory still exists: %v", err)
	}
}

func TestOnceRemovesFailedEntry(t *testing.T) {
	s := store(t)
	failure := errors.New("no network")
	if _, err := s.once(guestsDir, "key", func(string) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("got %v, want %v", err, failure)
	}
	if entries, err := os.ReadDir(filepath.Join(s.dir, guestsDir)); len(entries) > 0 || err != nil {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestExpireRemovesUnusedEntries(t *testing.T) {
	s := store(t)
	for _, key := range []string{"old", "new"} {
		testkit.Value(s.once(guestsDir, key, func(string) error { return nil }))(t)
	}
	old := time.Now().Add(-keep - time.Hour)
	testkit.Must(t, os.Chtimes(filepath.Join(s.dir, guestsDir, "old"), old, old))
	testkit.Must(t, s.expire(time.Now()))
	testkit.Value(s.Agent("/tree"))(t) // used now
	testkit.Must(t, s.expire(time.Now()))
	if agents, err := os.ReadDir(filepath.Join(s.dir, agentsDir)); len(agents) != 1 || err != nil {
		t.Errorf("got agents %v, %v; want one", agents, err)
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, guestsDir))
	if len(entries) != 1 || entries[0].Name() != "new" || err != nil {
		t.Errorf("got entries %v, %v; want only new", entries, err)
	}
}

func TestLockReturnsAtContextEnd(t *testing.T) {
	s := store(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := s.locked(t.Context(), func() error {
		cancel()
		return s.locked(ctx, func() error { return nil })
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestOldPlanIsUsedWithoutNetwork(t *testing.T) {
	s := store(t)
	offline, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := s.plan(offline); err == nil {
		t.Errorf("got a plan without package lists: %+v", p)
	}
	made := &plan{Made: time.Now(), Next: time.Now().Add(time.Minute), Asked: toolPackages(), Missing: map[Source]string{Backports: "of this test"}}
	testkit.Must(t, s.writePlan(made))
	if p, err := s.plan(t.Context()); err != nil || p.Missing[Backports] != made.Missing[Backports] {
		t.Errorf("%+v, %v", p, err)
	}
	// An expired plan is used again if no new one can be made.
	testkit.Must(t, s.doubt())
	p, err := s.plan(offline)
	if err != nil || p.Missing[Backports] != made.Missing[Backports] {
		t.Fatalf("%+v, %v", p, err)
	}
	if wait := time.Until(p.Next); wait <= 0 || wait > retry {
		t.Errorf("the next update is in %v, want up to %v", wait, retry)
	}
}

func TestInvalidPlanIsIgnored(t *testing.T) {
	s := store(t)
	for _, text := range []string{"", "{", `{"Made":"yesterday"}`} {
		testkit.Must(t, os.WriteFile(s.planPath(), []byte(text), 0o644))
		if p, err := s.readPlan(); p != nil || err != nil {
			t.Errorf("plan %q: got %+v, %v; want nil", text, p, err)
		}
	}
	if err := s.doubt(); err != nil {
		t.Errorf("doubt without a plan: %v", err)
	}
}

// A plan for other tools is outdated.
func TestPlanForOtherToolsIsRenewed(t *testing.T) {
	s := store(t)
	testkit.Must(t, s.writePlan(&plan{Made: time.Now(), Next: time.Now().Add(time.Minute), Asked: []string{"coreutils"}, Missing: map[Source]string{Backports: "of this test"}}))
	offline, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := s.plan(offline) // the update fails, so the old plan is used
	if err != nil || time.Until(p.Next) < time.Minute {
		t.Errorf("no update was attempted: %+v, %v", p, err)
	}
}
