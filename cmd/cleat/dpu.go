package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/pool"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	// snapDir is where the node driver expects the sockets.
	snapDir       = "/var/lib/nvidia/storage/snap"
	defaultPlugin = "cleat"
	// dpuStateName is next to the plugin's socket: NVIDIA's chart mounts no
	// other host directory.
	dpuStateName = "state"
	// oldDPUState was used by earlier releases, with a subdirectory of the
	// plugin's name in their chart.
	oldDPUState = "/var/lib/cleat/dpu"
)

func newDPUCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "dpu",
		Short: "Run the DPF storage vendor plugin of a DPU",
		Long: `Serves NVIDIA DPF's contract for storage vendors (nvidia.storage.plugins.v1) on a
UNIX socket, and creates the devices that the node driver requests in the local
SNAP process: bdevs over NVMe-oF (TCP, RDMA), of Ceph RBD images and of files, and
file system devices of NFS exports, CephFS directories and local directories. It
replaces NVIDIA's sample plugins, with their sockets, variables and keys. Started
under the command name of a sample, such as /block-storage-vendor-dpu-plugin, it
has the defaults of that sample.

Both sockets are found by name, as in the node driver:
  ` + snapDir + `/plugins/PLUGIN/dpu.sock
  ` + snapDir + `/providers/PROVIDER/snap.sock
Set a non-empty --provider-name, and let SNAP listen at that path: with the empty
name of NVIDIA's default process, current node drivers skip the detachment in SNAP
that must precede the deletion of a device.

Devices are recorded in --state-dir, without secrets. The default is the directory
` + dpuStateName + ` next to the plugin's socket, which a pod mounts from the host anyway. The record
of an earlier release in ` + oldDPUState + ` is moved there.

Keys of DH-HMAC-CHAP, TLS and Ceph are files in --key-dir, referenced by name in
contexts. SNAP must see the keys and the volumes at the same paths.`,
		Example: `  cleat dpu --plugin-name my-vendor --provider-name snap
  cleat dpu --plugin-name my-vendor --provider-name snap --key-dir /etc/my-vendor/keys --host-nqn nqn.2014-08.org.nvmexpress:uuid:8e5ef8b9-51d7-4f2b-9c57-0d3b1d3f6a10
  cleat dpu --snap-socket /var/tmp/spdk.sock --plugin-socket /run/cleat/dpu/dpu.sock --volume-dir /run/cleat/volumes`,
		Args: noArgs,
	}, &dpuServer{sample: filepath.Base(os.Args[0])})
}

func (s *dpuServer) addFlags(fs *pflag.FlagSet) {
	s.hostname, _ = os.Hostname() // if it is empty, --node is required
	plugin, provider := defaultPlugin, ""
	if name, is := samplePluginNames()[s.sample]; is {
		plugin, provider = name, sampleProvider
	}
	fs.StringVar(&s.plan.Plugin, "plugin-name", plugin, "name of this plugin, and of the directory in which the node driver expects its socket; do not change it while devices exist")
	fs.StringVar(&s.service.Provider, "provider-name", provider, "name of the SNAP process, and of the directory in which the node driver expects its socket; empty: NVIDIA's default process")
	fs.StringVar(&s.pluginSocket, "plugin-socket", "", "UNIX socket to serve, in its own directory; by default the path that the node driver expects")
	fs.StringVar(&s.snapSocket, "snap-socket", "", "UNIX socket of the SNAP process; by default the path that the node driver expects")
	fs.StringVar(&s.mounts.Dir, "volume-dir", "", "mount directory of file systems, also visible to SNAP; by default "+snapDir+"/providers/PROVIDER/volumes/PLUGIN")
	fs.StringVar(&s.StateDir, "state-dir", "", "state directory, on storage that survives a reboot; by default "+dpuStateName+" next to the plugin's socket")
	fs.StringVar(&s.mounts.KeyDir, "key-dir", "", "directory of keys, one per file, also visible to SNAP; empty: no keys")
	fs.StringVar(&s.mounts.CephDir, "ceph-dir", "", "directory of the NAME.conf files of Ceph clusters, also visible to SNAP; empty: no clusters")
	fs.StringToStringVar(&s.pools, "pool", nil, "directory whose files and directories can be used as volumes, as UUID=DIRECTORY; can be repeated")
	fs.StringVar(&s.service.Name, "name", "", "name reported by GetPluginInfo, in domain name notation; by default PLUGIN.dpu.cleat.dev")
	fs.StringVar(&s.node, "node", "", "name of this node, from which the host NQN is derived; by default the host name at the first start, which is recorded")
	fs.StringVar(&s.cluster, "cluster-id", "", "name of the cluster, part of the derived host NQN: that of the controller (cleat csi --engine spdk), which then admits this node")
	fs.StringVar(&s.hostNQN, "host-nqn", "", "host NQN for volumes whose context sets none; by default derived from --cluster-id and --node")
	fs.StringVar((*string)(&s.objects.TCP), "tcp-transport", string(object.TCPAuto), "name of the TCP transport: TCP, NVDA_TCP, or auto for the one that SNAP supports")
	cli.Enumerate(fs, "tcp-transport", string(object.TCPAuto), string(object.TCPUpstream), string(object.TCPNVIDIA))
	fs.IntVar(&s.objects.AIOBlockSize, "aio-block-size", 4096, "block size of file bdevs, in bytes")
	fs.IntVar(&s.lossTimeout, "ctrlr-loss-timeout", -1, "seconds until a lost controller is removed, for volumes whose context does not set it; -1: never, so that a bdev in use is not removed")
	fs.IntVar(&s.reconnectDelay, "reconnect-delay", 2, "seconds between reconnect attempts")
	fs.IntVar(&s.fastIOFail, "fast-io-fail-timeout", 0, "seconds until I/O fails while a controller is lost; 0: I/O waits until the controller is reconnected or removed")
	fs.DurationVar(&s.answerWithin, "answer-within", 25*time.Second, "time limit of a call; after it the call is answered as in progress, and continues in the background")
	s.AddAllowUIDs(fs, "allow-uid", "user IDs, besides root, that are allowed to call, and so to give away every volume")
	s.AddFlags(fs, server.Defaults{Env: map[string]string{ // variables of NVIDIA's sample plugins
		"plugin-name": "PLUGIN_NAME", "provider-name": "PROVIDER_NAME", "plugin-socket": "PLUGIN_SOCKET_PATH",
		"snap-socket": "SNAP_SOCKET_PATH", "volume-dir": "VOLUME_DIRECTORY", "node": "NODE_NAME",
	}})
}

// Complete derives settings and refuses those that cannot work.
func (s *dpuServer) Complete() error {
	if name, is := samplePluginNames()[s.sample]; is { // the samples treat an empty variable as unset
		s.plan.Plugin, s.service.Provider = cmp.Or(s.plan.Plugin, name), cmp.Or(s.service.Provider, sampleProvider)
	}
	for flag, name := range map[string]string{"plugin-name": s.plan.Plugin, "provider-name": s.service.Provider} {
		if name != filepath.Base(name) && name != "" || name == ".." || name == "." || name == "/" {
			return fmt.Errorf("--%s %q is not a single directory name without slashes", flag, name)
		}
	}
	if s.plan.Plugin == "" {
		return fmt.Errorf("--plugin-name is empty: set the plugin name of the DPUStorageVendor")
	}
	provider := filepath.Join(snapDir, "providers", s.service.Provider)
	s.pluginSocket = cmp.Or(s.pluginSocket, filepath.Join(snapDir, "plugins", s.plan.Plugin, "dpu.sock"))
	s.snapSocket = cmp.Or(s.snapSocket, filepath.Join(provider, "snap.sock"))
	s.mounts.Dir = cmp.Or(s.mounts.Dir, filepath.Join(provider, "volumes", s.plan.Plugin))
	s.service.Name = cmp.Or(s.service.Name, s.plan.Plugin+".dpu.cleat.dev")
	for flag, path := range map[string]*string{
		"plugin-socket": &s.pluginSocket, "snap-socket": &s.snapSocket, "volume-dir": &s.mounts.Dir, "key-dir": &s.mounts.KeyDir, "ceph-dir": &s.mounts.CephDir,
	} {
		if *path != "" && !filepath.IsAbs(*path) {
			return fmt.Errorf("--%s %q is not an absolute path: SNAP would resolve it differently", flag, *path)
		}
		if *path != "" {
			*path = filepath.Clean(*path)
		}
	}
	if s.StateDir == "" {
		s.oldStates = []string{filepath.Join(oldDPUState, s.plan.Plugin), oldDPUState}
		s.StateDir = filepath.Join(filepath.Dir(s.pluginSocket), dpuStateName)
	}
	if s.keepsNode = s.node == "" && s.hostNQN == ""; s.keepsNode {
		s.node = s.hostname
	}
	if s.answerWithin <= 0 {
		return fmt.Errorf("--answer-within %s is not positive", s.answerWithin)
	}
	pools, err := pool.Parse(s.pools)
	if err != nil {
		return fmt.Errorf("--pool: %w", err)
	}
	s.mounts.Pools, s.objects.Pools, s.objects.KeyDir, s.objects.CephDir = pools, pools, s.mounts.KeyDir, s.mounts.CephDir
	return s.identify()
}

func (s *dpuServer) identify() error {
	if s.node == "" && s.hostNQN == "" {
		return fmt.Errorf("this machine has no host name: set --node or --host-nqn, by which targets identify hosts")
	}
	s.plan.HostNQN = cmp.Or(s.hostNQN, driver.HostNQN(s.cluster, s.node))
	s.plan.Timeouts = access.Timeouts{Loss: access.Sec(s.lossTimeout), Delay: access.Sec(s.reconnectDelay), FastFail: access.Sec(s.fastIOFail)}
	if err := access.CheckNQN(s.plan.HostNQN); err != nil {
		return fmt.Errorf("--host-nqn: %w", err)
	}
	if err := s.plan.Timeouts.Check(); err != nil {
		return fmt.Errorf("--ctrlr-loss-timeout %d, --reconnect-delay %d, --fast-io-fail-timeout %d: %w", s.lossTimeout, s.reconnectDelay, s.fastIOFail, err)
	}
	return nil
}
