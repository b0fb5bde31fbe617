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
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	// snapDir is DPF's own directory, below which the node driver looks.
	snapDir       = "/var/lib/nvidia/storage/snap"
	defaultPlugin = "cleat"
	// dpuStateName is the state directory beside the plugin's socket: NVIDIA's chart
	// mounts nothing else from the host.
	dpuStateName = "state"
	// oldDPUState is the state directory of earlier releases. Their chart used a
	// directory of the plugin's name in it.
	oldDPUState = "/var/lib/cleat/dpu"
)

func newDPUCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "dpu",
		Short: "Be DPF's storage vendor plugin on a DPU",
		Long: `Serves NVIDIA DPF's contract for storage vendors (nvidia.storage.plugins.v1) on a
UNIX socket, and creates what the node driver requests in the SNAP process beside
it: bdevs over NVMe-oF (TCP, RDMA), of Ceph RBD images and of files, and file
system devices of NFS exports, CephFS directories and local directories. It
replaces NVIDIA's sample plugins, with their sockets, variables and keys; started
by the command name of one, such as /block-storage-vendor-dpu-plugin, it has the
defaults of that sample.

It finds both sockets by name, as the node driver does:
  ` + snapDir + `/plugins/PLUGIN/dpu.sock
  ` + snapDir + `/providers/PROVIDER/snap.sock
Give --provider-name a name, and let SNAP listen there: with an empty one, for
NVIDIA's default process, today's node driver skips the withdrawal that has to
come before a device is deleted.

Devices are on record in --state-dir, without secrets. By default that is the
directory ` + dpuStateName + ` beside the plugin's socket, which a pod mounts from the host in any
case. A record of an earlier release in ` + oldDPUState + ` is moved there.

Keys of DH-HMAC-CHAP, TLS and Ceph are files of --key-dir, which contexts name;
SNAP must see them, and volumes, at the same paths.`,
		Example: `  cleat dpu --plugin-name my-vendor --provider-name snap
  cleat dpu --plugin-name my-vendor --provider-name snap --key-dir /etc/my-vendor/keys --host-nqn nqn.2014-08.org.nvmexpress:uuid:8e5ef8b9-51d7-4f2b-9c57-0d3b1d3f6a10
  cleat dpu --snap-socket /var/tmp/spdk.sock --plugin-socket /run/cleat/dpu/dpu.sock --volume-dir /run/cleat/volumes`,
		Args: exactlyNone,
	}, &dpuServer{sample: filepath.Base(os.Args[0])})
}

func (s *dpuServer) addFlags(fs *pflag.FlagSet) {
	s.hostname, _ = os.Hostname() // without one --node must be given
	plugin, provider := defaultPlugin, ""
	if name, is := samplePluginNames()[s.sample]; is {
		plugin, provider = name, sampleProvider
	}
	fs.StringVar(&s.plan.Plugin, "plugin-name", plugin, "name of this plugin: the node driver looks for its socket in the directory of that name")
	fs.StringVar(&s.service.Provider, "provider-name", provider, "name of the SNAP process: the node driver looks for its socket in the directory of that name; empty: NVIDIA's default process")
	fs.StringVar(&s.pluginSocket, "plugin-socket", "", "UNIX socket to serve, in a directory of its own; by default where the node driver looks")
	fs.StringVar(&s.snapSocket, "snap-socket", "", "UNIX socket of the SNAP process; by default where the node driver looks")
	fs.StringVar(&s.mounts.Dir, "volume-dir", "", "directory to mount file systems in, which SNAP sees too; by default "+snapDir+"/providers/PROVIDER/volumes/PLUGIN")
	fs.StringVar(&s.StateDir, "state-dir", "", "directory for what this process must remember, on a disk that survives a reboot; by default "+dpuStateName+" beside the plugin's socket")
	fs.StringVar(&s.mounts.KeyDir, "key-dir", "", "directory of keys, one to a file, which SNAP sees too; empty: there are none")
	fs.StringVar(&s.mounts.CephDir, "ceph-dir", "", "directory of NAME.conf for Ceph clusters that contexts name, which SNAP sees too; empty: there are none")
	fs.StringToStringVar(&s.pools, "pool", nil, "a directory whose files and directories volumes may be, as UUID=DIRECTORY; may be repeated")
	fs.StringVar(&s.service.Name, "name", "", "name that GetPluginInfo reports, a domain name; by default PLUGIN.dpu.cleat.dev")
	fs.StringVar(&s.node, "node", "", "name of this machine, from which the host NQN follows; by default its host name at the first start, which is kept on record")
	fs.StringVar(&s.hostNQN, "host-nqn", "", "host NQN for volumes whose context has none; by default one that follows from --node")
	fs.StringVar((*string)(&s.objects.TCP), "tcp-transport", string(object.TCPAuto), "name of the transport over TCP: TCP, NVDA_TCP, or auto for the one that SNAP has")
	fs.IntVar(&s.objects.AIOBlockSize, "aio-block-size", 4096, "block size of bdevs on files, in bytes")
	fs.IntVar(&s.lossTimeout, "ctrlr-loss-timeout", -1, "seconds until a lost controller is given up, for volumes whose context does not say; -1: never, so that a bdev does not vanish under a host")
	fs.IntVar(&s.reconnectDelay, "reconnect-delay", 2, "seconds between two attempts to connect again")
	fs.IntVar(&s.fastIOFail, "fast-io-fail-timeout", 0, "seconds until I/O fails while a controller is lost; 0: it waits until the controller is back or given up")
	fs.DurationVar(&s.answerWithin, "answer-within", 25*time.Second, "how long a call may take before it is answered that it goes on")
	s.AddAllowUIDs(fs, "allow-uid", "these users may call besides root")
	s.AddFlags(fs, server.Defaults{Env: map[string]string{ // of NVIDIA's sample plugins
		"plugin-name": "PLUGIN_NAME", "provider-name": "PROVIDER_NAME", "plugin-socket": "PLUGIN_SOCKET_PATH",
		"snap-socket": "SNAP_SOCKET_PATH", "volume-dir": "VOLUME_DIRECTORY", "node": "NODE_NAME",
	}})
}

// Complete derives settings from others, and refuses those that cannot work.
func (s *dpuServer) Complete() error {
	if name, is := samplePluginNames()[s.sample]; is { // the samples treat an empty variable as unset
		s.plan.Plugin, s.service.Provider = cmp.Or(s.plan.Plugin, name), cmp.Or(s.service.Provider, sampleProvider)
	}
	for flag, name := range map[string]string{"plugin-name": s.plan.Plugin, "provider-name": s.service.Provider} {
		if name != filepath.Base(name) && name != "" || name == ".." || name == "." || name == "/" {
			return fmt.Errorf("--%s %q: it is the name of one directory, without slashes", flag, name)
		}
	}
	if s.plan.Plugin == "" {
		return fmt.Errorf("--plugin-name is empty: give the name under which DPUStorageVendor knows this plugin")
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
			return fmt.Errorf("--%s %q is not an absolute path; SNAP would look for it elsewhere", flag, *path)
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
		return fmt.Errorf("--answer-within %s: a time above 0 is needed", s.answerWithin)
	}
	pools, err := pool.Parse(s.pools)
	if err != nil {
		return fmt.Errorf("--pool: %w", err)
	}
	s.mounts.Pools, s.objects.Pools, s.objects.KeyDir, s.objects.CephDir = pools, pools, s.mounts.KeyDir, s.mounts.CephDir
	return s.identify()
}

// identify derives the host NQN and the timeouts of plans.
func (s *dpuServer) identify() error {
	if s.node == "" && s.hostNQN == "" {
		return fmt.Errorf("this machine has no name: give --node or --host-nqn, by which targets tell hosts apart")
	}
	s.plan.HostNQN = cmp.Or(s.hostNQN, access.HostNQN(s.node))
	s.plan.Timeouts = access.Timeouts{Loss: access.Sec(s.lossTimeout), Delay: access.Sec(s.reconnectDelay), FastFail: access.Sec(s.fastIOFail)}
	if err := access.CheckNQN(s.plan.HostNQN); err != nil {
		return fmt.Errorf("--host-nqn: %w", err)
	}
	if err := s.plan.Timeouts.Check(); err != nil {
		return fmt.Errorf("--ctrlr-loss-timeout %d, --reconnect-delay %d, --fast-io-fail-timeout %d: %w", s.lossTimeout, s.reconnectDelay, s.fastIOFail, err)
	}
	return nil
}
