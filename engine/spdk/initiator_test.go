package spdk

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// initiator is another process of the real SPDK, for hosts with keys. It attaches one session of a host to a volume.
type initiator struct {
	*rig
	client *rpc.Client
	keys   int
	open   map[string]bool // NQNs of volumes
}

// initiatorFor returns an initiator without a session to a volume.
func (r *rig) initiatorFor(nqn string) *initiator {
	r.t.Helper()
	r.needsProgram()
	for _, i := range r.initiators {
		if !i.open[nqn] {
			return i
		}
	}
	socket := filepath.Join(testkit.Dir(r.t), "rpc.sock")
	launch(r.t, socket, "-m", "0x2") // without --interrupt-mode, with which it attaches nothing
	i := &initiator{rig: r, client: testkit.Open(rpc.Open(rpc.Config{Socket: socket}))(r.t), open: map[string]bool{}}
	r.initiators = append(r.initiators, i)
	return i
}

// connect attaches a controller, with keys if there are any.
func (i *initiator) connect(nqn string, to netip.AddrPort, host, source string, keys spdktest.Keys) (session, error) {
	i.t.Helper()
	i.keys++
	name := fmt.Sprintf("nv%d", i.keys)
	a := rpc.NVMeAttach{Name: name, NVMeAddress: addressOf("tcp", to), HostNQN: host, HostAddress: source}
	a.SubNQN = nqn
	add := func(name, key string) string {
		testkit.Must(i.t, i.client.AddKeyFile(testkit.Context(i.t), name, i.keyFile(name, key)))
		return name
	}
	if keys.DHChap != "" {
		a.DHCHAPKey = add(name, keys.DHChap)
	}
	if keys.TLS != "" {
		a.PSK = add(name+"-tls", keys.TLS)
	}
	if _, err := i.client.AttachNVMe(testkit.Context(i.t), a); err != nil {
		return nil, err
	}
	i.open[nqn] = true
	c := testkit.Value(i.client.NVMeController(testkit.Context(i.t), name))(i.t)
	return &attached{initiator: i, name: name, nqn: nqn, id: c.Paths[0].ControllerID}, nil
}

// attached is the session of a controller.
type attached struct {
	*initiator
	name, nqn string
	id        int
	once      sync.Once
}

// Alive reports whether the target has the session.
func (a *attached) Alive() bool {
	all := testkit.Value(a.real.SubsystemControllers(testkit.Context(a.t), a.nqn))(a.t)
	return slices.ContainsFunc(all, func(c rpc.SubsystemController) bool { return c.ControllerID == a.id })
}

func (a *attached) Close() {
	a.once.Do(func() {
		testkit.Must(a.t, a.client.DetachNVMe(testkit.Context(a.t), a.name, nil))
		delete(a.open, a.nqn)
	})
}
