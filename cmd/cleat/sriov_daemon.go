package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/podresources"
)

const sriovDaemonState = "/var/lib/cleat/sriov-daemon"

// sriovDaemonFlags are the settings of cleat sriov daemon.
type sriovDaemonFlags struct {
	config         string
	mode           string
	nodeState      string
	kubeconfig     string
	namespace      string
	node           string
	writeStatus    bool
	controlSocket  string
	pluginConfig   string
	guidFile       string
	podResources   string
	pod            string
	own            podresources.Pod
	sysfsRoot      string
	stateDir       string
	lease, hold    time.Duration
	resync         time.Duration
	settle         time.Duration
	unacknowledged time.Duration
	force          bool
	dryRun         bool
	output         cli.Format
	metricsAddress string
	logFormat      string
	logLevel       string

	parsed daemon.Mode
	host   host.Config // beside Sysfs; zero is this machine
}

// newSriovDaemonCommand makes the command for a machine; nil is this one.
func newSriovDaemonCommand(machine *host.Config) *cobra.Command {
	f := sriovDaemonFlags{output: cli.FormatTable}
	if machine != nil {
		f.host = *machine
	}
	c := &cobra.Command{
		Use:   "daemon",
		Short: "Answer for SR-IOV functions: configure them, or follow who does",
		Long: `Lets the device plugin of this node (cleat sriov plugin --controlled-mode) offer
its devices only while the functions are as the node's SriovNetworkNodeState wants
them, and has everything taken back first when they are about to change.

  --mode apply    makes them so itself: numbers of functions, drivers, MAC addresses
                  and GUIDs, MTU, trust and spoof check, vDPA. Functions that pods
                  hold are not touched, unless with --force: the plan then waits
                  until the pods are gone, and the node offers nothing meanwhile.
  --mode follow   leaves that to the daemon of the SR-IOV network operator. Devices
                  are taken back with any change of the node state, and offered
                  again when its status says Succeeded and a look at the node finds
                  nothing left to do.

The node state is a file (--node-state, YAML or JSON, watched), or the object of the
API server: as a pod finds it, or by --kubeconfig. What is under way is on record in
--state-dir: after a restart the work goes on, and what is done is offered at once.

A plugin that speaks the published contract without cleat's extensions is told by
closing the stream; that nothing is offered is then asked of the kubelet. A plugin
without a control socket cannot be told: the daemon says so and goes on, as the
operator's does. Without a kubelet nobody can tell which pods hold functions:
nothing that exists is touched then. On a machine that has none give an empty
--pod-resources-socket.

--dry-run prints the plan and changes nothing.

Every flag can also be given in the environment (--state-dir as CLEAT_STATE_DIR)
and in a YAML file (--config) whose keys are the names of the flags. A flag wins
over the environment, and the environment over the file.`,
		Example: `  cleat sriov daemon --mode follow
  cleat sriov daemon --mode apply --node-state /etc/cleat/node-state.yaml
  cleat sriov daemon --mode apply --node-state node-state.yaml --dry-run`,
		Args: exactlyNone,
	}
	f.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(cmd.Flags(), cli.Sources{File: configFile(cmd.Flags()), LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		if err := f.complete(); err != nil {
			return err
		}
		if f.dryRun {
			return previewSriov(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		}
		return serveSriovDaemon(cmd.Context(), f, cmd.ErrOrStderr())
	}
	return c
}

func (f *sriovDaemonFlags) add(fs *pflag.FlagSet) {
	hostname, _ := os.Hostname() // without one --node must be given
	fs.StringVar(&f.config, "config", "", "YAML file with any of these settings")
	fs.StringVar(&f.mode, "mode", string(daemon.Follow), "who configures functions: apply (this daemon) or follow (the operator's)")
	fs.StringVar(&f.nodeState, "node-state", "", "file with the SriovNetworkNodeState; empty: it is an object of the API server")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "file that says where the API server is; empty: as a pod finds it")
	fs.StringVar(&f.namespace, "namespace", "", "of the object; by default the pod's own, else "+source.DefaultNamespace)
	fs.StringVar(&f.node, "node", strings.ToLower(hostname), "name of this node, and of the object")
	fs.BoolVar(&f.writeStatus, "write-status", true, "with --mode apply, write what was found and how far it is into the object's status")
	fs.StringVar(&f.controlSocket, "control-socket", sriovControlSocket, "UNIX socket of the plugin")
	fs.StringVar(&f.guidFile, "guid-file", sriovGUIDFile, "the operator's file of static InfiniBand GUIDs; it need not be there")
	fs.StringVar(&f.pluginConfig, "plugin-config", "", "the plugin's config.json: devices are offered only while the plugin has read the same; empty: whatever it has")
	fs.StringVar(&f.podResources, "pod-resources-socket", podresources.DefaultSocket, "socket on which the kubelet tells which pod has which device; empty: there is no kubelet, and no pod holds a function")
	fs.StringVar(&f.pod, "pod", "", "the pod that this process is in, NAMESPACE/NAME: while the kubelet does not list it, the kubelet has just started, and what it says of pods does not count")
	fs.StringVar(&f.sysfsRoot, "sysfs-root", "/sys", "where sysfs is mounted")
	fs.StringVar(&f.stateDir, "state-dir", sriovDaemonState, "directory for what this process must remember")
	fs.DurationVar(&f.lease, "lease", 30*time.Second, "the plugin takes its devices back when it has not heard from this daemon for so long, though the stream is open; 0: never")
	fs.DurationVar(&f.hold, "hold", 0, "devices stay offered for so long when this daemon is lost, as during its upgrade; 0: they are taken back at once")
	fs.DurationVar(&f.resync, "resync", 5*time.Minute, "how often the node is looked at though nothing is heard of a change")
	fs.DurationVar(&f.settle, "settle", 0, "how long to wait between the withdrawal and the first step, so that the scheduler hears of it: it binds pods for some 10 s more, which then fail to start")
	fs.DurationVar(&f.unacknowledged, "unacknowledged-wait", 10*time.Second, "how long a plugin that cannot acknowledge may take to withdraw")
	fs.BoolVar(&f.force, "force", false, "touch functions also when pods hold them, or when nobody can tell")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print what would be done, and end")
	fs.VarP(&f.output, "output", "o", "with --dry-run: table, json or yaml")
	fs.StringVar(&f.metricsAddress, "metrics-address", "", "host:port or socket path for /metrics, /healthz, /readyz and /status; empty: none")
	fs.StringVar(&f.logFormat, "log-format", "json", "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	cobra.CheckErr(cli.EnvAlias(fs, "node", "NODE_NAME")) // as the operator's daemon has it
	cli.DescribeEnv(fs)
}

// complete refuses what cannot work.
func (f *sriovDaemonFlags) complete() (err error) {
	if f.parsed, err = daemon.ParseMode(f.mode); err != nil {
		return fmt.Errorf("--mode: %w", err)
	}
	if f.nodeState != "" && f.kubeconfig != "" {
		return fmt.Errorf("--node-state %q and --kubeconfig %q: the node state is a file or an object; give one of them", f.nodeState, f.kubeconfig)
	}
	if f.node == "" && f.nodeState == "" {
		return fmt.Errorf("this machine has no name: give --node, the name of its object")
	}
	f.sysfsRoot = cmp.Or(f.sysfsRoot, "/sys")
	for flag, path := range map[string]*string{"sysfs-root": &f.sysfsRoot, "state-dir": &f.stateDir, "node-state": &f.nodeState, "plugin-config": &f.pluginConfig, "guid-file": &f.guidFile} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	if f.own, err = parsePod(f.pod); err != nil {
		return err
	}
	if f.podResources != "" && !filepath.IsAbs(f.podResources) {
		return fmt.Errorf("--pod-resources-socket %q is not an absolute path", f.podResources)
	}
	return f.times()
}

func (f *sriovDaemonFlags) times() error {
	switch {
	case f.lease != 0 && (f.lease < control.MinLease || f.lease > control.MaxLease):
		return fmt.Errorf("--lease %s: want 0, or %s to %s", f.lease, control.MinLease, control.MaxLease)
	case f.hold < 0 || f.hold > control.MaxHold:
		return fmt.Errorf("--hold %s: want 0 to %s", f.hold, control.MaxHold)
	case f.resync < time.Second:
		return fmt.Errorf("--resync %s: want 1s at least", f.resync)
	case f.settle < 0 || f.settle > time.Hour:
		return fmt.Errorf("--settle %s: want 0 to 1h", f.settle)
	case f.unacknowledged <= 0 || f.unacknowledged > time.Hour:
		return fmt.Errorf("--unacknowledged-wait %s: want a time above 0, at most 1h", f.unacknowledged)
	}
	return nil
}

func (f *sriovDaemonFlags) rules() daemon.Rules {
	return daemon.Rules{
		Mode: f.parsed, Force: f.force, Resync: f.resync, Settle: f.settle, Unacknowledged: f.unacknowledged,
		Node: f.node, Lease: f.lease, Hold: f.hold,
	}
}
