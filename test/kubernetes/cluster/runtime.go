package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cleatproject/cleat/internal/rpcdial"
)

// pauseImage is the image of the container that holds a pod's namespaces.
const pauseImage = "cleat.local/pause:local"

// startRuntime starts containerd, with a network for pods.
func (c *Cluster) startRuntime(ctx context.Context) error {
	if err := c.writeRuntimeConfig(); err != nil {
		return err
	}
	p, err := c.Start("containerd", "/usr/bin/containerd", nil, "--config", c.runtimeConfigPath())
	if err != nil {
		return err
	}
	c.runtime = p
	conn, err := rpcdial.Unix(runtimeSocket)
	if err != nil {
		return err
	}
	defer conn.Close()
	// containerd's other services answer before the CRI service is initialized.
	return c.await(ctx, "containerd", p, func(ctx context.Context) (bool, error) {
		err := conn.Invoke(ctx, "/runtime.v1.RuntimeService/Status", &emptypb.Empty{}, &emptypb.Empty{})
		return err == nil, err
	})
}

func (c *Cluster) runtimeConfigPath() string { return filepath.Join(c.Dir, "containerd.toml") }

func (c *Cluster) writeRuntimeConfig() error {
	for name, text := range map[string]string{
		"containerd.toml": fmt.Sprintf(`version = 2
root = "%[1]s/containerd"
state = "/run/containerd/state"
[grpc]
  address = "%[2]s"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[3]s"
  # Without CAP_SYS_RESOURCE no process can be made less likely to be killed,
  # and runc dies when it is asked to.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`, c.Dir, runtimeSocket, pauseImage),
		"cni/10-pods.conflist": fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, podNet(c.site.Node)),
	} {
		path := filepath.Join(c.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// RestartRuntime kills and restarts containerd; its shims and the pods continue
// to run.
func (c *Cluster) RestartRuntime(ctx context.Context) error {
	c.runtime.Kill()
	return c.startRuntime(ctx)
}

const runtimeSocket = "/run/containerd/containerd.sock"

// Import imports the images of an OCI archive into the first node's runtime;
// pods use them without pulling.
func (c *Cluster) Import(ctx context.Context, archive string) error {
	return importInto(ctx, runtimeSocket, archive)
}

func importInto(ctx context.Context, socket, archive string) error {
	out, err := exec.CommandContext(ctx, "ctr", "-a", socket, "-n", "k8s.io", "images", "import", "--all-platforms", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import images of %s: %w: %s", archive, err, out)
	}
	return nil
}
