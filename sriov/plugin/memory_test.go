package plugin_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/grants"
)

// slowMemory waits with its first record.
type slowMemory struct {
	once             sync.Once
	entered, blocked chan struct{}
}

func (m *slowMemory) Put(context.Context, []grants.Record) error {
	m.once.Do(func() {
		close(m.entered)
		<-m.blocked
	})
	return nil
}

func (*slowMemory) Remove(context.Context, []grants.Record) error { return nil }
func (*slowMemory) All() []grants.Record                          { return nil }

func newMemory(t *testing.T) *grants.Grants {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "plugin.db"), store.Options{Role: grants.Role, Version: grants.Version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := grants.Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
