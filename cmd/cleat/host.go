package main

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/watch"
)

const (
	// defaultPlugins is gone with the machine's power, and with it the sockets
	// that nobody serves any more.
	defaultPlugins = "/run/cleat/plugins"
	defaultHost    = "unix:///run/cleat/host/host.sock"
)

// hostFlags are the settings of cleat host.
type hostFlags struct {
	config         string
	pluginsDir     string
	devicesDir     string
	pluginTypes    []string
	besideKubelet  bool
	allowUIDs      []uint
	grace          time.Duration
	deregister     bool
	socket         string
	socketGroup    string
	output         string
	metricsAddress string
	logFormat      string
	logLevel       string
	settings       *pflag.FlagSet // those that may also come from elsewhere
}

func newHostCommand() *cobra.Command {
	var f hostFlags
	c := &cobra.Command{
		Use:   "host",
		Short: "Find and register plugins, as a kubelet does",
		Long: `Finds the plugins that put a socket below a directory, asks each who it is,
registers it and tells it so, exactly as the kubelet does: CSI drivers, device
plugins, DRA drivers. It is for machines without a kubelet, and for tests of
plugins. Ask it with cleat plugins; cleat volume --driver finds a CSI driver
through it by name.

On a terminal it shows a table of all plugins and the reasons of those that are
not registered; elsewhere it writes a line when one is registered, fails or
goes. -o json streams every step as a line of JSON.

Device plugins that call Register find kubelet.sock in --device-plugins-dir.

Plugins that expect a kubelet have its directory built in: give them
--plugins-dir /var/lib/kubelet/plugins_registry. One host alone may register the
plugins of a directory: another cleat host, or a kubelet that watches it, makes
this one refuse to start.

Every flag but --output can also be given in the environment (--plugins-dir as
CLEAT_PLUGINS_DIR) and in a YAML file (--config) whose keys are the names of the
flags. A flag wins over the environment, and the environment over the file.`,
		Example: `  sudo cleat host
  sudo cleat host --plugins-dir /var/lib/kubelet/plugins_registry
  sudo cleat host --grace 30s -o json | jq -c '[.kind, .plugin.name, .plugin.phase]'`,
		Args: exactlyNone,
	}
	f.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(f.settings, cli.Sources{File: configFile(cmd.Flags()), LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		return serveHost(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return c
}

func (f *hostFlags) add(fs *pflag.FlagSet) {
	s := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	s.StringVar(&f.config, "config", "", "YAML file with any of these settings")
	s.StringVar(&f.pluginsDir, "plugins-dir", defaultPlugins, "directory below which plugins put their sockets; made when missing")
	s.StringVar(&f.devicesDir, "device-plugins-dir", "", "directory of device plugins that call Register on its kubelet.sock; by default device-plugins beside --plugins-dir. Made when missing; sockets in it are removed at the start, as by the kubelet")
	s.StringSliceVar(&f.pluginTypes, "plugin-type", nil, "register plugins of this type too, beside "+strings.Join(knownTypes(), ", ")+"; may be repeated")
	s.BoolVar(&f.besideKubelet, "beside-kubelet", false, "start also when a kubelet registers the plugins of this directory; each plugin then gets two answers")
	s.UintSliceVar(&f.allowUIDs, "allow-uid", nil, "register only plugins that root or these users serve; anybody's when not given")
	s.DurationVar(&f.grace, "grace", 0, "deregister a plugin when nobody has answered on its socket for so long; 0: only when the socket goes, as the kubelet")
	s.BoolVar(&f.deregister, "deregister-on-exit", false, "deregister all plugins at the end; without it they are left as they are, as by the kubelet")
	s.StringVar(&f.socket, "socket", defaultHost, "UNIX socket on which cleat plugins and others may ask, in a directory of its own")
	s.StringVar(&f.socketGroup, "socket-group", "", "group (name or id) that may ask beside root")
	s.StringVar(&f.metricsAddress, "metrics-address", "", "host:port or socket path for /metrics, /healthz, /readyz and /status; empty: none")
	s.StringVar(&f.logFormat, "log-format", "json", "text or json")
	s.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; error where the table is shown")
	cli.DescribeEnv(s)
	f.settings = s
	fs.AddFlagSet(s)
	// CLEAT_OUTPUT is for the commands of a person, which have other formats.
	fs.StringVarP(&f.output, "output", "o", "table", "table, json (a line for each step), or none")
}

// check refuses settings that cannot work, before anything is touched.
func (f hostFlags) check() error {
	switch {
	case !slices.Contains([]string{"table", "json", "none"}, f.output):
		return fmt.Errorf("--output %q: use table, json or none", f.output)
	case !filepath.IsAbs(f.pluginsDir) || filepath.Clean(f.pluginsDir) != f.pluginsDir:
		return fmt.Errorf("--plugins-dir %q must be an absolute, clean path, as %s", f.pluginsDir, defaultPlugins)
	case f.pluginsDir == "/":
		return fmt.Errorf("--plugins-dir / holds every socket of the machine: give a directory that is for plugins, as %s", defaultPlugins)
	case !filepath.IsAbs(f.deviceDir()) || filepath.Clean(f.deviceDir()) != f.deviceDir() || f.deviceDir() == "/" || f.deviceDir() == f.pluginsDir:
		return fmt.Errorf("--device-plugins-dir %q must be an absolute, clean path, and another directory than --plugins-dir", f.deviceDir())
	case f.grace < 0:
		return fmt.Errorf("--grace %s is negative; 0 is none", f.grace)
	}
	for _, kind := range f.pluginTypes {
		if kind == "" || slices.Contains(knownTypes(), kind) {
			return fmt.Errorf("--plugin-type %q: give a type other than %s, which are registered in any case", kind, strings.Join(knownTypes(), ", "))
		}
	}
	for _, uid := range f.allowUIDs {
		if uid == overflowUID || uid >= math.MaxUint32 {
			return fmt.Errorf("--allow-uid %d: that is how users of other user namespaces look, any of them", uid)
		}
	}
	if _, err := unixsock.ParseEndpoint(f.socket); err != nil {
		return fmt.Errorf("--socket: %w", err)
	}
	return nil
}

// overflowUID is how the kernel shows a user that is not mapped here.
const overflowUID = 65534

// socketMode lets a group that was named ask beside root.
func (f hostFlags) socketMode() fs.FileMode {
	if f.socketGroup != "" {
		return 0o660
	}
	return 0o600
}

// peer is the check of who serves a plugin; nil: none.
func (f hostFlags) peer() func(watch.Peer) error {
	if len(f.allowUIDs) == 0 {
		return nil
	}
	return func(p watch.Peer) error {
		if p.UID == 0 || slices.Contains(f.allowUIDs, uint(p.UID)) {
			return nil
		}
		return fmt.Errorf("user %d serves the socket (process %d), and only root and users of --allow-uid may", p.UID, p.PID)
	}
}
