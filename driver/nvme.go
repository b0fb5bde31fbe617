package driver

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/nvme"
	"github.com/cleatproject/cleat/volume/access"
)

// NVMe has the flags that all engines with NVMe-oF volumes share.
type NVMe struct {
	cluster, keys string
}

// AddFlags declares --cluster-id and --nvme-key-dir.
func (n *NVMe) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&n.cluster, "cluster-id", "", "name of this cluster, part of the derived host NQNs: set it, alike in all processes, if several clusters use a target")
	fs.StringVar(&n.keys, "nvme-key-dir", "", "directory of DH-HMAC-CHAP and TLS keys, one file each; the dhchapKey and tlsKey of a volume are names of files")
}

// Cluster returns --cluster-id.
func (n *NVMe) Cluster() string { return n.cluster }

// HostNQN derives the host NQN of a node of this cluster, which a target must admit.
func (n *NVMe) HostNQN(node string) string { return HostNQN(n.cluster, node) }

// HostNQN derives a host NQN. The controller, the node and the DPU of a cluster, which
// can be "", derive the same one.
func HostNQN(cluster, node string) string {
	if cluster != "" {
		node = cluster + "/" + node
	}
	return access.HostNQN(node)
}

// Attach adds the attacher of NVMe volumes, as a host with this NQN.
func (n *NVMe) Attach(ctx context.Context, p *Process, c *node.Config, hostNQN string) error {
	lock, err := nvme.LockHostNQN(ctx, hostNQN)
	if err != nil {
		return err
	}
	p.OnClose(func(context.Context) error { return lock.Close() })
	attacher, err := nvme.New(nvme.Config{Dir: p.StateDir(), HostNQN: hostNQN, KeyDir: n.keys, Logger: p.Logger()})
	if err != nil {
		return err
	}
	p.OnClose(attacher.Close)
	p.Background("attacher", attacher.Run)
	c.Attachers = map[string]node.Attacher{nvme.Protocol(): attacher}
	return p.Metrics().Register(attacher.Collector())
}
