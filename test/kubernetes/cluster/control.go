package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// startControlPlane starts etcd, API server, controller manager and scheduler,
// and returns when the API server is ready.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	if _, err := c.Start("etcd", "/usr/bin/etcd", nil,
		"--data-dir", filepath.Join(c.Dir, "etcd"),
		"--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
		"--initial-cluster", "default=http://127.0.0.1:2380",
		"--unsafe-no-fsync"); err != nil { // the cluster does not survive a reboot of the machine
		return err
	}
	apiserver, err := c.Start("apiserver", c.Programs.Path("kube-apiserver"), nil,
		"--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--secure-port=6443", "--advertise-address="+nodeAddress(1),
		"--tls-cert-file="+c.keys.path("apiserver.crt"), "--tls-private-key-file="+c.keys.path("apiserver.key"),
		"--client-ca-file="+c.keys.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.keys.path("accounts.pub"), "--service-account-signing-key-file="+c.keys.path("accounts.key"),
		"--kubelet-client-certificate="+c.keys.path("apiserver-kubelet.crt"), "--kubelet-client-key="+c.keys.path("apiserver-kubelet.key"),
		"--kubelet-certificate-authority="+c.keys.path("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=Node,RBAC", "--service-cluster-ip-range="+serviceNet, "--allow-privileged=true",
		"--enable-admission-plugins=NodeRestriction")
	if err != nil {
		return err
	}
	if err := c.await(ctx, "the API server", apiserver, func(ctx context.Context) (bool, error) {
		err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return err == nil, err
	}); err != nil {
		return err
	}
	conf := c.keys.path("controller-manager.conf")
	if _, err := c.Start("controller-manager", c.Programs.Path("kube-controller-manager"), nil,
		"--kubeconfig="+conf, "--authentication-kubeconfig="+conf, "--authorization-kubeconfig="+conf, "--bind-address=127.0.0.1",
		"--service-account-private-key-file="+c.keys.path("accounts.key"), "--root-ca-file="+c.keys.path("ca.crt"),
		"--use-service-account-credentials", "--cluster-signing-cert-file="+c.keys.path("ca.crt"), "--cluster-signing-key-file="+c.keys.path("ca.key"),
		"--leader-elect=false",
		"--kube-api-qps=200", "--kube-api-burst=400"); err != nil { // as in large clusters: with the default 20, only four claims are bound per second
		return err
	}
	conf = c.keys.path("scheduler.conf")
	_, err = c.Start("scheduler", c.Programs.Path("kube-scheduler"), nil,
		"--kubeconfig="+conf, "--authentication-kubeconfig="+conf, "--authorization-kubeconfig="+conf, "--bind-address=127.0.0.1", "--leader-elect=false")
	return err
}

// startProxy starts kube-proxy, through which pods of sidecars reach the API
// server's service address.
func (c *Cluster) startProxy() error {
	config := filepath.Join(c.Dir, "proxy.yaml")
	// Conntrack limits of 0 leave the machine's sysctls unchanged.
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
bindAddress: 127.0.0.1
clusterCIDR: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, podNet(c.site.Node), c.Node, c.keys.path("proxy.conf")), 0o644); err != nil {
		return err
	}
	_, err := c.Start("proxy", c.Programs.Path("kube-proxy"), nil, "--config="+config)
	return err
}
