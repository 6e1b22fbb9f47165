package storage

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/zap"
)

// redisStorage is a storage in a Redis. A file is a hash with its value and the time of
// its last change, at PREFIX:file:KEY. The sorted set PREFIX:index has the keys of all
// files in byte order, so a directory is a range of it. One transaction changes both. A
// lock is a key PREFIX:lock:NAME that holds a token and expires.
type redisStorage struct {
	remote
	client *redis.Client
	prefix string
}

// remove deletes the file ARGV[1] and all files below it. KEYS[1] is the index. ARGV[2]
// is the prefix of the files' Redis keys.
var remove = redis.NewScript(`
local gone = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. ARGV[1] .. '/', '(' .. ARGV[1] .. '0')
table.insert(gone, ARGV[1])
for _, key in ipairs(gone) do
	redis.call('DEL', ARGV[2] .. key)
	redis.call('ZREM', KEYS[1], key)
end
return #gone`)

// redisTake sets the lock KEYS[1] to the token ARGV[1] for ARGV[2] milliseconds, unless
// another token has it. The caller may repeat it: an attempt whose answer was lost does
// not block the next attempt.
var redisTake = redis.NewScript(`
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)

// redisExtend extends the lock to ARGV[2] milliseconds from now, if the token has it.
var redisExtend = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)

// redisDrop releases the lock, if the token has it.
var redisDrop = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)

// silence stops go-redis from writing to standard error: weir gets all errors as return
// values.
var silence = sync.OnceFunc(func() { redis.SetLogger(new(logging.VoidLogger)) })

func openRedis(address string, log *zap.Logger) (Storage, error) {
	silence()
	o, prefix, err := redisOptions(address)
	if err != nil {
		return nil, err
	}
	scheme := "redis"
	if o.TLSConfig != nil {
		scheme = "rediss"
	}
	r := &redisStorage{remote: newRemote(scheme+"://"+o.Addr+"/"+strconv.Itoa(o.DB), "the Redis", log), client: redis.NewClient(o), prefix: prefix}
	r.do = r.script
	return r, nil
}

// redisOptions parses the URL of a Redis. Its errors do not quote the URL, which may
// contain a password.
func redisOptions(address string) (*redis.Options, string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || strings.ContainsAny(u.Hostname(), "[]") {
		return nil, "", errors.New("storage is not the URL of a Redis (it is not shown, as it may hold a password); write one such as redis://user:password@redis.example.org:6379/0")
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	o := &redis.Options{
		Addr:                     net.JoinHostPort(u.Hostname(), port),
		Username:                 u.User.Username(),
		ContextTimeoutEnabled:    true,
		DialTimeout:              2 * time.Second,
		ReadTimeout:              2 * time.Second,
		WriteTimeout:             2 * time.Second,
		PoolTimeout:              2 * time.Second,
		MaxRetries:               1,
		DialerRetries:            1,
		PoolSize:                 8,
		ConnMaxIdleTime:          5 * time.Minute,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	o.Password, _ = u.User.Password()
	if db := strings.Trim(u.Path, "/"); db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return nil, "", fmt.Errorf("storage at redis %s: the path of the URL is not a database number", o.Addr)
		}
	}
	if u.Scheme == "rediss" {
		o.TLSConfig = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
	}
	prefix := u.Query().Get("prefix")
	if prefix == "" {
		prefix = "weir"
	}
	return o, prefix, nil
}

func (r *redisStorage) file(key string) string { return r.prefix + ":file:" + key }
func (r *redisStorage) index() string          { return r.prefix + ":index" }

func (r *redisStorage) lockKey(name string) string { return r.prefix + ":lock:" + name }

// script does an operation on a lock.
func (r *redisStorage) script(ctx context.Context, what deed, name, token string) (bool, error) {
	script := map[deed]*redis.Script{take: redisTake, extend: redisExtend, drop: redisDrop}[what]
	n, err := script.Run(ctx, r.client, []string{r.lockKey(name)}, token, r.lease.Milliseconds()).Int()
	return n == 1, err
}

// Store implements certmagic.Storage.
func (r *redisStorage) Store(ctx context.Context, key string, value []byte) error {
	return r.on(ctx, "store", key, false, func(ctx context.Context, key string) error {
		_, err := r.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.HSet(ctx, r.file(key), "value", value, "modified", time.Now().UnixMilli())
			p.ZAdd(ctx, r.index(), redis.Z{Member: key})
			return nil
		})
		return err
	})
}

// Load implements certmagic.Storage.
func (r *redisStorage) Load(ctx context.Context, key string) (value []byte, err error) {
	err = r.on(ctx, "load", key, false, func(ctx context.Context, key string) error {
		value, err = r.client.HGet(ctx, r.file(key), "value").Bytes()
		if errors.Is(err, redis.Nil) {
			return fs.ErrNotExist
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return value, nil
}

// Delete implements certmagic.Storage.
func (r *redisStorage) Delete(ctx context.Context, key string) error {
	return r.on(ctx, "delete", key, false, func(ctx context.Context, key string) error {
		return remove.Run(ctx, r.client, []string{r.index()}, key, r.file("")).Err()
	})
}

// Exists implements certmagic.Storage.
func (r *redisStorage) Exists(ctx context.Context, key string) bool {
	_, err := r.Stat(ctx, key)
	return err == nil
}

// List implements certmagic.Storage.
func (r *redisStorage) List(ctx context.Context, key string, recursive bool) (keys []string, err error) {
	err = r.on(ctx, "list", key, true, func(ctx context.Context, key string) error {
		files, err := r.client.ZRangeArgs(ctx, r.below(key, 0)).Result()
		if err != nil {
			return err
		}
		if len(files) == 0 && key != "" {
			switch there, err := r.client.Exists(ctx, r.file(key)).Result(); {
			case err != nil:
				return err
			case there == 0:
				return fs.ErrNotExist
			}
		}
		keys = tree(key, files, recursive)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// below returns the range of the index below a directory: all of it, or its first count
// keys.
func (r *redisStorage) below(key string, count int64) redis.ZRangeArgs {
	args := redis.ZRangeArgs{Key: r.index(), ByLex: true, Start: "-", Stop: "+", Count: count}
	if key != "" {
		args.Start, args.Stop = "["+key+"/", "("+key+"0" // '0' follows '/'
	}
	return args
}

// tree returns the files and directories one level below root, or all of them if
// recursive.
func tree(root string, files []string, recursive bool) []string {
	seen := make(map[string]bool)
	for _, f := range files {
		for f != root && f != "." && !seen[f] {
			parent := path.Dir(f)
			if recursive || parent == root || parent == "." && root == "" {
				seen[f] = true
			}
			f = parent
		}
	}
	keys := make([]string, 0, len(seen))
	for k := range seen {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Stat implements certmagic.Storage.
func (r *redisStorage) Stat(ctx context.Context, key string) (info certmagic.KeyInfo, err error) {
	err = r.on(ctx, "look at", key, true, func(ctx context.Context, k string) error {
		if k == "" {
			return nil // the storage itself is always there
		}
		p := r.client.Pipeline()
		modified := p.HGet(ctx, r.file(k), "modified")
		size := p.HStrLen(ctx, r.file(k), "value")
		files := p.ZRangeArgs(ctx, r.below(k, 1))
		if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		at, err := modified.Int64()
		switch {
		case err == nil:
			info.IsTerminal, info.Modified, info.Size = true, time.UnixMilli(at), size.Val()
		case !errors.Is(err, redis.Nil):
			return err
		case len(files.Val()) == 0:
			return fs.ErrNotExist
		}
		return nil
	})
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	info.Key = key
	return info, nil
}

// Close implements io.Closer.
func (r *redisStorage) Close() error {
	r.end()
	if err := r.client.Close(); err != nil {
		return failed(r, "close", "the connections", err)
	}
	return nil
}
