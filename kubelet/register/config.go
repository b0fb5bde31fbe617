package register

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// The types of plugin that a kubelet registers. Other hosts may know more.
const (
	CSI    = registration.CSIPlugin
	Device = registration.DevicePlugin
	DRA    = registration.DRAPlugin
)

// Plugin is what a host is told.
type Plugin struct {
	Type string `json:"type"`
	// Name is a driver's name, or the resource of a device plugin
	// (vendor.com/resource).
	Name string `json:"name"`
	// Endpoint is the socket of the plugin's own contract, as an absolute path
	// on the host: in a container that may be another than the plugin's own.
	Endpoint string `json:"endpoint"`
	// Versions are those of the contract. A CSI driver says 1.0.0, as every
	// registrar does, whatever 1.x it serves: a kubelet lets a higher version
	// push a live driver of the same name out, and takes both for gone when the
	// older one ends. A device plugin says v1beta1, a DRA driver its services.
	Versions []string `json:"versions"`
}

// Config is that of a Registrar.
type Config struct {
	Plugin Plugin
	// Dir is the host's directory for registration sockets, as this process
	// sees it; for a kubelet plugins_registry below its root directory.
	Dir string
	// UID of the pod, for a DRA driver of which two instances may live side by
	// side during an update.
	UID string

	Logger  *slog.Logger          // nil: no log
	Metrics prometheus.Registerer // for calls; nil: none
	// Silence is how long nobody may ask before that is called a fault; zero
	// is 30 s. A kubelet asks within 2 s, but only 2 min later when a dead
	// socket lay at the path before.
	Silence time.Duration
	// Every is how often the socket is looked at, also when nothing is heard of
	// it; zero is 2 s.
	Every time.Duration
	// Told hears each word of the host about the socket that is there: it has
	// registered the plugin, or has not, and why. It must not block. Nil: nobody.
	Told func(registered bool, text string)
}

var (
	versionOne   = regexp.MustCompile(`^v?1(\.[0-9]+)+$`)
	resourceName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	fileName     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	podUID       = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
)

// check refuses what no host could register, before anything is touched. It
// returns the path of the socket.
func (c Config) check() (socket string, err error) {
	if err := c.Plugin.check(); err != nil {
		return "", err
	}
	if c.UID != "" && c.Plugin.Type != DRA {
		return "", fmt.Errorf("a pod UID is for a %s only: a kubelet knows a %s by its name alone, so the end of one instance would take its successor out of use; run one instance per node", DRA, c.Plugin.Type)
	}
	if c.UID != "" && !podUID.MatchString(c.UID) {
		return "", fmt.Errorf("the pod UID %q is not one of letters, digits and dashes", c.UID)
	}
	if !filepath.IsAbs(c.Dir) || strings.ContainsRune(c.Dir, 0) {
		return "", fmt.Errorf("the directory %q is not an absolute path, as /var/lib/kubelet/plugins_registry is", c.Dir)
	}
	dir := filepath.Clean(c.Dir)
	socket = filepath.Join(dir, c.socketName())
	if over := len(socket) - unixsock.MaxPath; over > 0 {
		return "", fmt.Errorf("%w: a kubelet cannot connect to %s: %d bytes, at most %d are possible; shorten the directory (%d bytes) or the name (%d bytes) by %d",
			unixsock.ErrTooLong, socket, len(socket), unixsock.MaxPath, len(dir), len(c.Plugin.Name), over)
	}
	return socket, nil
}

// socketName is what the field calls it: driver-reg.sock. The slash of a
// resource becomes an underscore, which no domain name holds.
func (c Config) socketName() string {
	name := strings.ReplaceAll(c.Plugin.Name, "/", "_")
	if c.UID != "" {
		name += "-" + c.UID
	}
	return name + "-reg.sock"
}

func (p Plugin) check() error {
	if p.Type == "" {
		return fmt.Errorf("the plugin has no type: it is %s, %s, %s, or a word that the host knows", CSI, Device, DRA)
	}
	if err := p.checkName(); err != nil {
		return err
	}
	if err := p.checkEndpoint(); err != nil {
		return err
	}
	return p.checkVersions()
}

func (p Plugin) checkName() error {
	switch {
	case p.Type == Device && !resourceName.MatchString(p.Name):
		return fmt.Errorf("%q is no name of a resource, as vendor.com/device is", p.Name)
	case p.Type != Device && !fileName.MatchString(p.Name):
		return fmt.Errorf("the plugin's name %q cannot name a socket: letters, digits, dots, dashes and underscores are possible, without a dot in front", p.Name)
	}
	return nil
}

func (p Plugin) checkEndpoint() error {
	if !filepath.IsAbs(p.Endpoint) {
		return fmt.Errorf("the endpoint %q is not an absolute path; a kubelet takes it without a scheme, as /run/cleat/csi/csi.sock", p.Endpoint)
	}
	if _, err := unixsock.ParseEndpoint(p.Endpoint); err != nil {
		return err
	}
	if len(p.Endpoint) > unixsock.MaxPath {
		return fmt.Errorf("%w: a kubelet cannot connect to the endpoint %s: %d bytes, at most %d are possible", unixsock.ErrTooLong, p.Endpoint, len(p.Endpoint), unixsock.MaxPath)
	}
	return nil
}

// checkVersions knows the rules of a kubelet, which refuses everything else.
func (p Plugin) checkVersions() error {
	switch {
	case len(p.Versions) == 0 || slices.Contains(p.Versions, ""):
		return errors.New("the plugin needs the versions that it serves")
	case p.Type == CSI && !slices.ContainsFunc(p.Versions, versionOne.MatchString):
		return fmt.Errorf("a %s needs a version 1.x, as 1.0.0; there are %q", CSI, p.Versions)
	case p.Type == Device && !slices.Contains(p.Versions, "v1beta1"):
		return fmt.Errorf("a %s needs the version v1beta1; there are %q", Device, p.Versions)
	}
	return nil
}
