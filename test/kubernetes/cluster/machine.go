package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// Machine is an additional node with a kernel of its own, such as a guest. The
// caller boots it, gives it the files, and starts its processes.
type Machine struct {
	Name    string
	Address netip.Addr
	// Control is the address of the first node, and the gateway to the services'
	// addresses: this machine has no service proxy.
	Control, Services string
	// Dir is the directory of the files, here and there.
	Dir string
	// Keys has the certificates, State the node's other files; both are in Dir.
	Keys, State string
	// Binds are directories of State by where they are mounted, Volatile empty
	// directories of a boot, and Cgroup is below the root of cgroups version 2.
	Binds    map[string]string
	Volatile []string
	Cgroup   string
	// Runtime and Kubelet are command lines, with names of programs.
	Runtime, Kubelet []string
	// Socket is that of the runtime, PauseImage the archive of the image that it
	// needs.
	Socket, PauseImage string

	cluster *Cluster
}

// firstMachine is the number of the first machine; lower ones are AddNode's.
const firstMachine = 11

// AddMachine writes the files of an additional node.
func (c *Cluster) AddMachine() (*Machine, error) {
	c.mu.Lock()
	s := *c.site
	s.Node = firstMachine + c.machines
	c.machines++
	c.mu.Unlock()
	n := newCluster(&s)
	m := &Machine{
		Name: n.Node, Address: netip.MustParseAddr(nodeAddress(s.Node)), Control: nodeAddress(1), Services: serviceNet,
		Dir: s.Dir, Keys: c.keys.dir, State: n.Dir, Binds: bindMounts, Volatile: volatile, Cgroup: s.nodeCgroup(),
		Runtime: []string{"containerd", "--config", n.runtimeConfigPath()}, Kubelet: append([]string{"kubelet"}, n.kubeletArgs()...),
		Socket: runtimeSocket, PauseImage: filepath.Join(c.Dir, "own.tar"), cluster: c,
	}
	for _, dir := range bindMounts {
		if err := os.MkdirAll(filepath.Join(n.Dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	if err := c.keys.issueNode(m.Name, m.Address.String()); err != nil {
		return nil, err
	}
	if err := n.writeRuntimeConfig(); err != nil {
		return nil, err
	}
	return m, n.writeKubeletConfig()
}

// Ready waits until the kubelet has reported a ready node since a time.
func (m *Machine) Ready(ctx context.Context, since time.Time) error {
	return m.cluster.await(ctx, "the readiness of "+m.Name, nil, func(ctx context.Context) (bool, error) {
		return m.cluster.readySince(ctx, m.Name, since)
	})
}

// Link gives the machine's interface here, of this name, its route.
func (m *Machine) Link(device string) error {
	if err := run("ip", "link", "set", device, "up"); err != nil {
		return err
	}
	if err := run("ip", "route", "replace", m.Address.String()+"/32", "dev", device); err != nil {
		return fmt.Errorf("link %s: %w", m.Name, err)
	}
	return nil
}
