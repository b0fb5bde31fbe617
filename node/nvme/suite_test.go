package nvme_test

import (
	"testing"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/nodetest"
	"github.com/cleatproject/cleat/node/nvme"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

func TestSuite(t *testing.T) {
	features.Need(t, features.NVMeTarget)
	nodetest.Run(t, kernelRig)
}

func kernelRig(t *testing.T) nodetest.Rig {
	k := newTarget(t)
	dir, hostNQN := t.TempDir(), access.HostNQN(uuid.NewString())
	return nodetest.Rig{
		New: func() node.Attacher {
			a := testkit.Value(nvme.New(nvme.Config{Dir: dir, HostNQN: hostNQN}))(t)
			t.Cleanup(func() { testkit.Must(t, a.Close(testkit.Context(t))) })
			return a
		},
		Unseen: true, Vanishes: true,
		Create: func(id volume.ID, size int64) access.Access { return k.create(string(id), size) },
		Delete: func(id volume.ID) { k.remove(string(id)) },
		Grow:   func(id volume.ID, size int64) { k.grow(string(id), size) },
	}
}
