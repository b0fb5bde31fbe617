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
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/pool"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	// snapDir is DPF's own directory, below which the node driver looks.
	snapDir       = "/var/lib/nvidia/storage/snap"
	defaultPlugin = "cleat"
	// dpuStateName is the record's directory, beside the plugin's socket: of a pod
	// of NVIDIA's chart nothing else is on the host.
	dpuStateName = "state"
	// oldDPUState is where earlier releases kept it, and below it, in a directory
	// of the plugin's name, where their chart did.
	oldDPUState = "/var/lib/cleat/dpu"
)

// dpuFlags are the settings of cleat dpu.
type dpuFlags struct {
	hostname       string
	sample         string // command name of NVIDIA's sample plugin, if cleat was started by it
	config         string
	pluginName     string
	providerName   string
	pluginSocket   string
	snapSocket     string
	volumeDir      string
	stateDir       string
	oldStates      []string // where its record may be until it is moved; set by complete
	keyDir         string
	cephDir        string
	pools          map[string]string
	name           string
	node           string
	keepsNode      bool // node is that on record, if there is one; set by complete
	hostNQN        string
	tcp            string
	aioBlockSize   int
	lossTimeout    int
	reconnectDelay int
	fastIOFail     int
	answerWithin   time.Duration
	allowUIDs      []uint
	metricsAddress string
	logFormat      string
	logLevel       string
}

func newDPUCommand() *cobra.Command {
	f := dpuFlags{sample: filepath.Base(os.Args[0])}
	c := &cobra.Command{
		Use:   "dpu",
		Short: "Be DPF's storage vendor plugin on a DPU",
		Long: `Serves NVIDIA DPF's contract for storage vendors (nvidia.storage.plugins.v1) on a
UNIX socket, and makes what the node driver asks for in the SNAP process beside
it: bdevs over NVMe-oF (TCP, RDMA), of Ceph RBD images and of files, and file
system devices of NFS exports, CephFS directories and directories of this
machine. It takes the place of NVIDIA's sample plugins, with their sockets,
variables and keys; started by the command name of one, such as
/block-storage-vendor-dpu-plugin, it is this command with that sample's defaults.

It finds both sockets by the two names, as the node driver does:
  ` + snapDir + `/plugins/PLUGIN/dpu.sock
  ` + snapDir + `/providers/PROVIDER/snap.sock
Give --provider-name a real name, and let SNAP listen there: an empty one is the
contract's word for NVIDIA's default process, but today's node driver then skips
what it should take down before a device is deleted.

What it made is on record in --state-dir, without secrets, and outlives it. By
default that is the directory ` + dpuStateName + ` beside the plugin's socket, which a pod
mounts from the host in any case: also one of NVIDIA's chart. A record of an
earlier release in ` + oldDPUState + ` is moved there.

Keys of DH-HMAC-CHAP, TLS and Ceph are files of --key-dir, which contexts name;
SNAP must see them, and volumes, at the same paths.

Every flag can also be given in the environment (--state-dir as CLEAT_STATE_DIR)
and in a YAML file (--config) whose keys are the names of the flags. A flag wins
over the environment, and the environment over the file.`,
		Example: `  cleat dpu --plugin-name my-vendor --provider-name snap
  cleat dpu --plugin-name my-vendor --provider-name snap --key-dir /etc/my-vendor/keys --host-nqn nqn.2014-08.org.nvmexpress:uuid:8e5ef8b9-51d7-4f2b-9c57-0d3b1d3f6a10
  cleat dpu --snap-socket /var/tmp/spdk.sock --plugin-socket /run/cleat/dpu/dpu.sock --volume-dir /run/cleat/volumes`,
		Args: exactlyNone,
	}
	f.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(cmd.Flags(), cli.Sources{File: configFile(cmd.Flags()), LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		return serveDPU(cmd.Context(), f, cmd.ErrOrStderr())
	}
	return c
}

func (f *dpuFlags) add(fs *pflag.FlagSet) {
	f.hostname, _ = os.Hostname() // without one --node must be given
	fs.StringVar(&f.config, "config", "", "YAML file with any of these settings")
	plugin, provider := defaultPlugin, ""
	if name, is := samplePluginNames()[f.sample]; is {
		plugin, provider = name, sampleProvider
	}
	fs.StringVar(&f.pluginName, "plugin-name", plugin, "name of this plugin: the node driver looks for its socket in the directory of that name")
	fs.StringVar(&f.providerName, "provider-name", provider, "name of the SNAP process: the node driver looks for its socket in the directory of that name; empty: NVIDIA's default process")
	fs.StringVar(&f.pluginSocket, "plugin-socket", "", "UNIX socket to serve, in a directory of its own; by default where the node driver looks")
	fs.StringVar(&f.snapSocket, "snap-socket", "", "UNIX socket of the SNAP process; by default where the node driver looks")
	fs.StringVar(&f.volumeDir, "volume-dir", "", "directory to mount file systems in, which SNAP sees too; by default "+snapDir+"/providers/PROVIDER/volumes/PLUGIN")
	fs.StringVar(&f.stateDir, "state-dir", "", "directory for what this process must remember, on a disk that survives a reboot; by default "+dpuStateName+" beside the plugin's socket")
	fs.StringVar(&f.keyDir, "key-dir", "", "directory of keys, one to a file, which SNAP sees too; empty: there are none")
	fs.StringVar(&f.cephDir, "ceph-dir", "", "directory of NAME.conf for Ceph clusters that contexts name, which SNAP sees too; empty: there are none")
	fs.StringToStringVar(&f.pools, "pool", nil, "a directory whose files and directories volumes may be, as UUID=DIRECTORY; may be repeated")
	fs.StringVar(&f.name, "name", "", "name that GetPluginInfo tells, a domain name; by default PLUGIN.dpu.cleat.dev")
	fs.StringVar(&f.node, "node", "", "name of this machine, from which the host NQN follows; by default its host name at the first start, which is kept on record")
	fs.StringVar(&f.hostNQN, "host-nqn", "", "host NQN for volumes whose context has none; by default one that follows from --node")
	fs.StringVar(&f.tcp, "tcp-transport", string(object.TCPAuto), "name of the transport over TCP: TCP, NVDA_TCP, or auto for the one that SNAP has")
	fs.IntVar(&f.aioBlockSize, "aio-block-size", 4096, "block size of bdevs on files, in bytes")
	fs.IntVar(&f.lossTimeout, "ctrlr-loss-timeout", -1, "seconds until a lost controller is given up, for volumes whose context does not say; -1: never, so that a bdev does not vanish under a host")
	fs.IntVar(&f.reconnectDelay, "reconnect-delay", 2, "seconds between two attempts to connect again")
	fs.IntVar(&f.fastIOFail, "fast-io-fail-timeout", 0, "seconds until I/O fails while a controller is lost; 0: it waits until the controller is back or given up")
	fs.DurationVar(&f.answerWithin, "answer-within", 25*time.Second, "how long a call may take before it is answered that it goes on")
	fs.UintSliceVar(&f.allowUIDs, "allow-uid", nil, "these users may call beside root")
	fs.StringVar(&f.metricsAddress, "metrics-address", "", "host:port or socket path for /metrics, /healthz, /readyz and /status; empty: none")
	fs.StringVar(&f.logFormat, "log-format", "json", "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; debug shows requests without their contexts")
	for flag, env := range map[string]string{ // of NVIDIA's sample plugins
		"plugin-name": "PLUGIN_NAME", "provider-name": "PROVIDER_NAME", "plugin-socket": "PLUGIN_SOCKET_PATH",
		"snap-socket": "SNAP_SOCKET_PATH", "volume-dir": "VOLUME_DIRECTORY", "node": "NODE_NAME",
	} {
		cobra.CheckErr(cli.EnvAlias(fs, flag, env))
	}
	cli.DescribeEnv(fs)
}

// complete fills in what follows from other settings, and refuses what cannot
// work.
func (f *dpuFlags) complete() error {
	if name, is := samplePluginNames()[f.sample]; is { // which take an empty variable for none
		f.pluginName, f.providerName = cmp.Or(f.pluginName, name), cmp.Or(f.providerName, sampleProvider)
	}
	for flag, name := range map[string]string{"plugin-name": f.pluginName, "provider-name": f.providerName} {
		if name != filepath.Base(name) && name != "" || name == ".." || name == "." || name == "/" {
			return fmt.Errorf("--%s %q: it is the name of one directory, without slashes", flag, name)
		}
	}
	if f.pluginName == "" {
		return fmt.Errorf("--plugin-name is empty: give the name under which DPUStorageVendor knows this plugin")
	}
	provider := filepath.Join(snapDir, "providers", f.providerName)
	f.pluginSocket = cmp.Or(f.pluginSocket, filepath.Join(snapDir, "plugins", f.pluginName, "dpu.sock"))
	f.snapSocket = cmp.Or(f.snapSocket, filepath.Join(provider, "snap.sock"))
	f.volumeDir = cmp.Or(f.volumeDir, filepath.Join(provider, "volumes", f.pluginName))
	f.name = cmp.Or(f.name, f.pluginName+".dpu.cleat.dev")
	for flag, path := range map[string]*string{
		"plugin-socket": &f.pluginSocket, "snap-socket": &f.snapSocket, "volume-dir": &f.volumeDir, "key-dir": &f.keyDir, "ceph-dir": &f.cephDir,
	} {
		if *path != "" && !filepath.IsAbs(*path) {
			return fmt.Errorf("--%s %q is not an absolute path; SNAP would look for it elsewhere", flag, *path)
		}
		if *path != "" {
			*path = filepath.Clean(*path)
		}
	}
	if f.stateDir == "" {
		f.oldStates = []string{filepath.Join(oldDPUState, f.pluginName), oldDPUState}
		f.stateDir = filepath.Join(filepath.Dir(f.pluginSocket), dpuStateName)
	}
	if f.keepsNode = f.node == "" && f.hostNQN == ""; f.keepsNode {
		f.node = f.hostname
	}
	if f.answerWithin <= 0 {
		return fmt.Errorf("--answer-within %s: a time above 0 is needed", f.answerWithin)
	}
	if _, err := pool.Parse(f.pools); err != nil {
		return fmt.Errorf("--pool: %w", err)
	}
	_, err := f.settings()
	return err
}

// settings are what plans of devices need.
func (f *dpuFlags) settings() (plan.Settings, error) {
	if f.node == "" && f.hostNQN == "" {
		return plan.Settings{}, fmt.Errorf("this machine has no name: give --node or --host-nqn, by which targets tell hosts apart")
	}
	s := plan.Settings{Plugin: f.pluginName, HostNQN: cmp.Or(f.hostNQN, access.HostNQN(f.node)), Timeouts: access.Timeouts{
		Loss: access.Sec(f.lossTimeout), Delay: access.Sec(f.reconnectDelay), FastFail: access.Sec(f.fastIOFail),
	}}
	if err := access.CheckNQN(s.HostNQN); err != nil {
		return s, fmt.Errorf("--host-nqn: %w", err)
	}
	if err := s.Timeouts.Check(); err != nil {
		return s, fmt.Errorf("--ctrlr-loss-timeout %d, --reconnect-delay %d, --fast-io-fail-timeout %d: %w", f.lossTimeout, f.reconnectDelay, f.fastIOFail, err)
	}
	return s, nil
}
