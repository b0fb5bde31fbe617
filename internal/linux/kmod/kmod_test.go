package kmod_test

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/kmod"
)

// A machine without modprobe, and a module that no kernel has.
func TestLoad(t *testing.T) {
	if err := kmod.Load(t.Context(), "no-such-module"); err == nil || !strings.Contains(err.Error(), "no-such-module") || !strings.Contains(err.Error(), "modules-load.d") {
		t.Error(err)
	}
}
