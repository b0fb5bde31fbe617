package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// Paths of the upstream plugin, the kubelet, Multus and container runtimes.
const (
	sriovControlSocket = "/var/lib/sriov/sriovdp-control.sock"
	sriovPluginState   = "/var/lib/cleat/sriov-plugin"
	sriovGUIDFile      = "/etc/sriov-operator/infiniband/guids"
	kubeletDir         = "/var/lib/kubelet"
	deviceInfoDir      = "/var/run/k8s.cni.cncf.io/devinfo/dp"
	cdiDir             = "/var/run/cdi"
)

// Values of --registration.
const (
	registerAuto    = "auto"
	registerCall    = "register"
	registerWatcher = "watcher"
)

func newSriovPluginCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "plugin",
		Short: "Run the SR-IOV device plugin",
		Long: `Replaces the SR-IOV network device plugin on a node, for SR-IOV functions,
accelerators and scalable functions. It uses the same config.json and flags, and
provides the environment variables, device nodes and files that workloads expect.

The configuration is reloaded when it changes (or on SIGHUP). Functions that are
added or removed, or change their driver, are reported to the kubelet. Pods keep
the devices that they have.

With --controlled-mode no devices are offered until a config daemon (cleat sriov
daemon, or another client of sriovdp.control.v1) opens a stream on
--control-socket. When the stream closes, Allocate is refused, calls in flight end,
and then all devices are reported unhealthy. The plugin stays registered: a restart
of the plugin would race with the kubelet's device manager.`,
		Example: `  cleat sriov plugin --config-file /etc/pcidp/config.json
  cleat sriov plugin --resource-prefix example.com --use-cdi
  cleat sriov plugin --controlled-mode --metrics-address :9808`,
		Args: noArgs,
	}, &sriovPluginServer{})
}

func (s *sriovPluginServer) addFlags(fs *pflag.FlagSet) {
	c := &s.config
	fs.StringVar(&c.ConfigFile, "config-file", sriovConfigFile, "config.json of the upstream plugin: selects functions and assigns them to resources")
	fs.StringVar(&c.Prefix, "resource-prefix", inventory.DefaultPrefix, "prefix of resources without one in the configuration")
	fs.BoolVar(&c.Strict, "strict-config", false, "refuse a configuration with unknown keys or other probable mistakes")
	fs.BoolVar(&c.CDI, "use-cdi", false, "pass devices to containers with CDI")
	fs.BoolVar(&c.Controlled, "controlled-mode", false, "offer devices only while a config daemon has a stream open on --control-socket")
	fs.StringVar(&s.controlSocket, "control-socket", sriovControlSocket, "UNIX socket for the config daemon, in its own directory; served with --controlled-mode")
	s.AddAllowUIDs(fs, "allow-uid", "user IDs, besides root, that are allowed to control the plugin")
	fs.DurationVar(&c.Bound, "withdraw-within", 10*time.Second, "time limit of a withdrawal call; after it the call is answered as in progress")
	fs.StringVar(&c.Discovery.Sysfs, "sysfs-root", "/sys", "mount point of sysfs")
	fs.StringVar(&c.Discovery.Dev, "dev-root", "/dev", "directory of the machine's device nodes")
	fs.StringVar(&s.kubeletDir, "kubelet-dir", kubeletDir, "root directory of the kubelet")
	fs.StringVar(&s.registrationDir, "registration-dir", "", "plugin registration directory of the kubelet; by default plugins_registry in --kubelet-dir")
	fs.StringVar(&s.registration, "registration", registerAuto, "registration with the kubelet: register (Register call), watcher (socket in --registration-dir), or auto (watcher if its directory is writable)")
	cli.Enumerate(fs, "registration", registerAuto, registerCall, registerWatcher)
	fs.StringVar(&s.podResources, "pod-resources-socket", "", "PodResources socket of the kubelet, optional; by default pod-resources/kubelet.sock in --kubelet-dir")
	fs.StringVar(&s.pod, "pod", "", "pod of this process, NAMESPACE/NAME: the kubelet's list of pods is incomplete after a restart, and ignored until it contains this pod")
	fs.StringVar(&c.Files.DeviceInfo, "device-info-dir", deviceInfoDir, "directory of device info files for Multus")
	fs.StringVar(&c.Files.CDI, "cdi-dir", cdiDir, "directory of CDI specifications for container runtimes")
	fs.BoolVar(&c.LinkHealth, "link-health", false, "report functions whose PF has no link as unhealthy")
	fs.DurationVar(&c.Interval, "rescan-interval", time.Minute, "interval at which the machine and the configuration are read without an observed change")
	addUpstreamLogFlags(fs)
	s.AddFlags(fs, server.Defaults{StateDir: sriovPluginState})
}

// addUpstreamLogFlags declares ignored log flags, so that the upstream plugin's
// manifests work unchanged.
func addUpstreamLogFlags(fs *pflag.FlagSet) {
	const none = "no effect: see --log-level; the log goes to standard error"
	names := []string{"log-dir", "log_dir", "log_link", "logbuflevel", "stderrthreshold", "vmodule", "log_backtrace_at"}
	for _, name := range names {
		fs.String(name, "", none)
	}
	fs.Bool("logtostderr", true, none)
	fs.Bool("alsologtostderr", true, none)
	fs.StringP("v", "v", "", none)
	for _, name := range append(names, "logtostderr", "alsologtostderr", "v") {
		cobra.CheckErr(fs.MarkHidden(name))
	}
}

// upstreamArgs accepts long flags of cleat sriov plugin with a single dash, as
// the upstream plugin does. Other arguments are unchanged.
func upstreamArgs(args []string) []string {
	if len(args) < 2 || args[0] != "sriov" || args[1] != "plugin" {
		return args
	}
	c := newSriovPluginCommand()
	c.InitDefaultHelpFlag()
	out := slices.Clone(args)
	for i := 2; i < len(out) && out[i] != "--"; i++ {
		name, _, valued := strings.Cut(strings.TrimLeft(out[i], "-"), "=")
		f := c.Flags().Lookup(name)
		if f == nil || !strings.HasPrefix(out[i], "-") {
			continue
		}
		if len(name) > 1 && !strings.HasPrefix(out[i], "--") {
			out[i] = "-" + out[i]
		}
		if !valued && f.NoOptDefVal == "" {
			i++ // its value
		}
	}
	return out
}

// Complete derives settings and refuses those that cannot work.
func (s *sriovPluginServer) Complete() (err error) {
	if s.own, err = parsePod(s.pod); err != nil {
		return err
	}
	c := &s.config
	if c.ConfigFile, err = filepath.Abs(c.ConfigFile); err != nil { // upstream accepts a relative path
		return fmt.Errorf("--config-file: %w", err)
	}
	if !filepath.IsAbs(s.kubeletDir) {
		return fmt.Errorf("--kubelet-dir %q is not an absolute path", s.kubeletDir)
	}
	s.registrationDir = cmp.Or(s.registrationDir, filepath.Join(s.kubeletDir, "plugins_registry"))
	s.podResources = cmp.Or(s.podResources, filepath.Join(s.kubeletDir, "pod-resources", "kubelet.sock"))
	for flag, path := range map[string]string{
		"control-socket": s.controlSocket, "sysfs-root": c.Discovery.Sysfs, "dev-root": c.Discovery.Dev,
		"registration-dir": s.registrationDir, "pod-resources-socket": s.podResources, "state-dir": s.StateDir,
		"device-info-dir": c.Files.DeviceInfo, "cdi-dir": c.Files.CDI,
	} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %q is not an absolute path", flag, path)
		}
	}
	if _, err := strconv.Atoi(s.LogLevel); err == nil { // a verbosity number from the upstream image
		s.LogLevel = "info"
	}
	if c.Interval <= 0 || c.Bound <= 0 {
		return fmt.Errorf("--rescan-interval %s and --withdraw-within %s must be positive", c.Interval, c.Bound)
	}
	switch s.registration {
	case registerCall, registerWatcher:
	case registerAuto:
		s.registration = registerCall
		if err := unix.Access(s.registrationDir, unix.W_OK|unix.X_OK); err == nil {
			s.registration = registerWatcher
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("--registration-dir %s: %w", s.registrationDir, err)
		}
	default:
		return fmt.Errorf("--registration %q is unknown: use %s, %s or %s", s.registration, registerAuto, registerCall, registerWatcher)
	}
	return nil
}
