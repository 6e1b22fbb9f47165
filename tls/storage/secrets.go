package storage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/api"
)

// secretStorage is a storage in the Secrets of a namespace, one Secret for each file. The
// name of a Secret ends with a hash of the key; an annotation has the key itself. Labels
// have hashes of the directories above the file, so that List asks only for the Secrets
// of a directory. A lock is a Lease.
type secretStorage struct {
	remote
	client    *api.Client
	locks     *api.Leases
	namespace string
	prefix    string
}

// secretType lets a watch for certificates exclude these Secrets (config/kube/kinds.go).
const secretType corev1.SecretType = "weirproxy.github.io/storage"

const (
	keyAnnotation  = "weirproxy.github.io/key"
	timeAnnotation = "weirproxy.github.io/modified"
	storageLabel   = "weirproxy.github.io/storage" // the prefix
	folderLabel    = "weirproxy.github.io/in-"     // plus a depth; the value is the hash of a directory
	valueKey       = "value"
)

// maxValue is the largest value that a Secret can hold, in bytes.
const maxValue = corev1.MaxSecretSize

// pageSize is the number of Secrets in one response to a list request.
const pageSize = 500

func openSecrets(address string, log *zap.Logger) (Storage, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("storage %s names no namespace; write one such as secrets://weir", address)
	}
	prefix := u.Query().Get("prefix")
	if prefix == "" {
		prefix = "weir"
	}
	c, err := api.Connect(u.Query().Get("kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("storage secrets://%s: %w", u.Host, err)
	}
	return newSecretStorage(c, u.Host, prefix, log), nil
}

func newSecretStorage(c *api.Client, namespace, prefix string, log *zap.Logger) *secretStorage {
	s := &secretStorage{remote: newRemote("secrets://"+namespace+"?prefix="+prefix, "the API server", log),
		client: c, locks: api.NewLeases(c, namespace), namespace: namespace, prefix: prefix}
	s.do = s.lock
	return s
}

// lock does an operation on a lock.
func (s *secretStorage) lock(ctx context.Context, what deed, name, token string) (bool, error) {
	c := api.Bid{Name: s.objectName("lock/" + name), Holder: token, Duration: s.lease, Labels: map[string]string{storageLabel: s.prefix},
		Annotations: map[string]string{keyAnnotation: name}}
	switch what {
	case take:
		return s.locks.Take(ctx, c)
	case extend:
		return s.locks.Extend(ctx, c)
	}
	return s.locks.Drop(ctx, c)
}

// objectName returns the name of the object for a key: a readable part and a hash.
func (s *secretStorage) objectName(key string) string {
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, path.Base(key))
	readable = readable[:min(len(readable), 100)]
	return fmt.Sprintf("%s-%s-%s", s.prefix, strings.Trim(readable, "-"), hashOf(key))
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return fmt.Sprintf("%x", sum[:16])
}

func (s *secretStorage) refused(verb, name string, err error) error {
	return api.Failure(verb, strings.TrimSpace("secrets "+name), s.namespace, err)
}

// Store implements certmagic.Storage.
func (s *secretStorage) Store(ctx context.Context, key string, value []byte) error {
	return s.on(ctx, "store", key, false, func(ctx context.Context, key string) error {
		if len(value) > maxValue {
			return fmt.Errorf("the value has %d bytes, and a Secret can hold %d", len(value), maxValue)
		}
		o := s.secret(key, value)
		for range 2 { // another process may create or delete it in between
			err := s.client.Core.Put().Namespace(s.namespace).Resource("secrets").Name(o.Name).Body(o).Do(ctx).Error()
			if !apierrors.IsNotFound(err) {
				return s.orFailed("update", o.Name, err)
			}
			err = s.client.Core.Post().Namespace(s.namespace).Resource("secrets").Body(o).Do(ctx).Error()
			if !apierrors.IsAlreadyExists(err) {
				return s.orFailed("create", o.Name, err)
			}
		}
		return errors.New("other processes create and delete the Secret at the same time")
	})
}

func (s *secretStorage) orFailed(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	return s.refused(verb, name, err)
}

func (s *secretStorage) secret(key string, value []byte) *corev1.Secret {
	o := &corev1.Secret{Type: secretType, Data: map[string][]byte{valueKey: value}}
	o.Name, o.Namespace = s.objectName(key), s.namespace
	o.Annotations = map[string]string{keyAnnotation: key, timeAnnotation: time.Now().UTC().Format(time.RFC3339Nano)}
	o.Labels = map[string]string{storageLabel: s.prefix}
	for d := path.Dir(key); d != "."; d = path.Dir(d) {
		o.Labels[labelOf(d)] = hashOf(d)
	}
	return o
}

func labelOf(directory string) string {
	return fmt.Sprintf("%s%d", folderLabel, strings.Count(directory, "/")+1)
}

// find returns the Secret of a file, or fs.ErrNotExist.
func (s *secretStorage) find(ctx context.Context, key string) (*corev1.Secret, error) {
	o, name := new(corev1.Secret), s.objectName(key)
	err := s.client.Core.Get().Namespace(s.namespace).Resource("secrets").Name(name).Do(ctx).Into(o)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fs.ErrNotExist
	case err != nil:
		return nil, s.refused("get", name, err)
	case o.Annotations[keyAnnotation] != key:
		return nil, fmt.Errorf("the Secret %s in namespace %s has another key in its annotation %s; delete it", name, s.namespace, keyAnnotation)
	}
	return o, nil
}

// Load implements certmagic.Storage.
func (s *secretStorage) Load(ctx context.Context, key string) (value []byte, err error) {
	err = s.on(ctx, "load", key, false, func(ctx context.Context, key string) error {
		o, err := s.find(ctx, key)
		if err == nil {
			value = o.Data[valueKey]
		}
		return err
	})
	return value, err
}

// Delete implements certmagic.Storage.
func (s *secretStorage) Delete(ctx context.Context, key string) error {
	return s.on(ctx, "delete", key, false, func(ctx context.Context, key string) error {
		files, err := s.below(ctx, key, 0)
		if err != nil {
			return err
		}
		for _, f := range append(files, key) {
			name := s.objectName(f)
			err := s.client.Core.Delete().Namespace(s.namespace).Resource("secrets").Name(name).Do(ctx).Error()
			if err != nil && !apierrors.IsNotFound(err) {
				return s.refused("delete", name, err)
			}
		}
		return nil
	})
}

// Exists implements certmagic.Storage.
func (s *secretStorage) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil
}

// below returns the files below a directory; "" is the storage itself. If most is not 0, it
// is the largest number of files that below returns.
func (s *secretStorage) below(ctx context.Context, directory string, most int64) (files []string, err error) {
	selector := storageLabel + "=" + s.prefix
	if directory != "" {
		selector += "," + labelOf(directory) + "=" + hashOf(directory)
	}
	o := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	if most > 0 {
		o.Limit = most
	}
	for {
		var list metav1.PartialObjectMetadataList
		err := s.client.Core.Get().Namespace(s.namespace).Resource("secrets").VersionedParams(&o, metav1.ParameterCodec).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Into(&list)
		if err != nil {
			return nil, s.refused("list", "", err)
		}
		for i := range list.Items {
			key := list.Items[i].Annotations[keyAnnotation]
			if directory == "" && key != "" || strings.HasPrefix(key, directory+"/") {
				files = append(files, key)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" || most > 0 {
			return files, nil
		}
	}
}

// List implements certmagic.Storage.
func (s *secretStorage) List(ctx context.Context, key string, recursive bool) (keys []string, err error) {
	err = s.on(ctx, "list", key, true, func(ctx context.Context, key string) error {
		files, err := s.below(ctx, key, 0)
		if err == nil && len(files) == 0 && key != "" {
			_, err = s.find(ctx, key)
		}
		if err == nil {
			keys = tree(key, files, recursive)
		}
		return err
	})
	return keys, err
}

// Stat implements certmagic.Storage.
func (s *secretStorage) Stat(ctx context.Context, key string) (info certmagic.KeyInfo, err error) {
	err = s.on(ctx, "look at", key, true, func(ctx context.Context, k string) error {
		if k == "" {
			return nil // the storage itself is always there
		}
		o, err := s.find(ctx, k)
		if err == nil {
			info.IsTerminal, info.Size = true, int64(len(o.Data[valueKey]))
			info.Modified, _ = time.Parse(time.RFC3339Nano, o.Annotations[timeAnnotation])
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		files, err := s.below(ctx, k, 1)
		if err == nil && len(files) == 0 {
			err = fs.ErrNotExist
		}
		return err
	})
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	info.Key = key
	return info, nil
}

// Close implements io.Closer.
func (s *secretStorage) Close() error {
	s.end()
	return nil
}
