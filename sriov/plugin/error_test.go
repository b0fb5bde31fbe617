package plugin_test

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/test/testkit"
)

// The status has the error of every resource.
func TestErrorOfRegisterNamesTheSocketOnce(t *testing.T) {
	k := plugin.Kubelet{Dir: t.TempDir()}
	err := k.Register(testkit.Context(t), plugin.Registration{Resource: resource, Endpoint: "x.sock"})
	socket := filepath.Join(k.Dir, plugin.KubeletSocket)
	if err == nil || strings.Count(err.Error(), socket) != 1 || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("%v, want %s once", err, socket)
	}
}
