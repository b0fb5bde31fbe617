package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// authority is the certificate authority of the cluster.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issueAll issues the certificates of the control plane and its clients.
func (a *authority) issueAll() error {
	return a.issueEach([]certificate{
		{file: "apiserver", name: "kube-apiserver",
			addresses: []string{"127.0.0.1", nodeAddress(1), "10.96.0.1"},
			names:     []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}},
		{file: "admin", name: "admin", group: "system:masters"},
		{file: "apiserver-kubelet", name: "apiserver-kubelet", group: "system:masters"},
		{file: "controller-manager", name: "system:kube-controller-manager"},
		{file: "scheduler", name: "system:kube-scheduler"},
		{file: "proxy", name: "system:kube-proxy"},
	})
}

// issueNode issues the kubelet's certificates: client NODE and server
// NODE-server.
func (a *authority) issueNode(node, address string) error {
	return a.issueEach([]certificate{
		{file: node, name: "system:node:" + node, group: "system:nodes"},
		{file: node + "-server", name: node, names: []string{node}, addresses: []string{address}},
	})
}

// certificate describes a client certificate, or with names and addresses a
// server certificate.
type certificate struct {
	file, name, group string
	names, addresses  []string
}

// issueEach writes the certificates, and a kubeconfig for each client.
func (a *authority) issueEach(all []certificate) error {
	for _, c := range all {
		t := &x509.Certificate{
			Subject:     pkix.Name{CommonName: c.name},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if c.group != "" {
			t.Subject.Organization = []string{c.group}
		}
		if c.addresses != nil {
			t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
			t.DNSNames = c.names
			for _, address := range c.addresses {
				t.IPAddresses = append(t.IPAddresses, net.ParseIP(address))
			}
		}
		if err := a.issue(c.file, t); err != nil {
			return fmt.Errorf("certificate %s: %w", c.file, err)
		}
		if c.addresses != nil {
			continue
		}
		if err := a.kubeconfig(c.file); err != nil {
			return err
		}
	}
	return nil
}

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return a, a.write("ca", der, key)
}

func (a *authority) issue(file string, t *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)); err != nil {
		return err
	}
	t.NotBefore, t.NotAfter, t.KeyUsage = a.cert.NotBefore, a.cert.NotAfter, x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return a.write(file, der, key)
}

// write writes FILE.crt and FILE.key.
func (a *authority) write(file string, der []byte, key crypto.PrivateKey) error {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for path, block := range map[string]*pem.Block{
		a.path(file + ".crt"): {Type: "CERTIFICATE", Bytes: der},
		a.path(file + ".key"): {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// kubeconfig writes FILE.conf for the client certificate FILE.
func (a *authority) kubeconfig(file string) error {
	c := api.NewConfig()
	c.Clusters["here"] = &api.Cluster{Server: "https://" + nodeAddress(1) + ":6443", CertificateAuthority: a.path("ca.crt")}
	c.AuthInfos["me"] = &api.AuthInfo{ClientCertificate: a.path(file + ".crt"), ClientKey: a.path(file + ".key")}
	c.Contexts["here"] = &api.Context{Cluster: "here", AuthInfo: "me"}
	c.CurrentContext = "here"
	return clientcmd.WriteToFile(*c, a.path(file+".conf"))
}
