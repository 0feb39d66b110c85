"""Model-only: does the trunk learn the T-maze's reward? args: N T B updates opts"""
import sys, time
import jax, jax.numpy as jnp, numpy as np, optax
from dtc.world_model import rssm, losses, latent
from dtc.config.sections import RSSMConfig
from dtc.core.nets import Precision
from dtc.envs.tmaze import tmaze
from dtc.core.types import Row
from dtc.core import distributions as dist
from dataclasses import replace
N,T,B,U=map(int,sys.argv[1:5]); opts=dict(o.split('=') for o in sys.argv[5:])
env=tmaze(N); spec=env.spec
cfg=RSSMConfig(size='nano',encoder_layers=1,decoder_layers=1,**{k:int(v) for k,v in opts.items() if k in('deter','hidden','units','groups','classes','blocks')})
prec=Precision()
trunk=rssm.make_trunk(cfg,spec,prec)
params=rssm.init(jax.random.key(int(opts.get('seed',0))),trunk)
if 'ub' in opts:  # bias shift
    lo,hi=map(float,opts['ub'].split(','))
    w=cfg.deter//cfg.blocks
    t=np.geomspace(lo,hi,w); upd=np.tile(1-np.log(t-1),cfg.blocks)
    b=params['core']['gates']['bias']; params['core']['gates']['bias']=jnp.concatenate([jnp.zeros(2*cfg.deter),jnp.asarray(upd,jnp.float32)])
lr=float(opts.get('lr',2e-3))
from dtc.core import optimizer
from dtc.config.sections import OptimizerConfig
tx=optimizer.make(lr,OptimizerConfig(),decay=int(opts.get('decay',1000)))
rs=float(opts.get('rs',1))
opt=tx.init(params)
L=N+2
def batch(rng):
    ph=rng.integers(0,L,B) if not 'aligned' in opts else np.zeros(B,int)
    t=ph[:,None]+np.arange(T+1)[None]; ep,pos=t//L,t%L
    cue=rng.integers(0,2,(B,T//L+3)); cue=np.take_along_axis(cue,ep,1)
    act=rng.integers(0,2,(B,T+1)) if not 'fixed' in opts else np.zeros((B,T+1),int)
    if 'quiet' in opts: act=np.where(pos==N,act,0)
    sign=np.where(pos==0,cue,np.where(pos<N,2,np.where(pos==N,3,4)))
    prev=np.concatenate([np.zeros((B,1),int),act[:,:-1]],1)
    rew=((pos==N+1)&((prev==cue) if not 'linear' in opts else (cue==0))).astype(np.float32)
    f=lambda x:jnp.asarray(x[:, 1:].T)
    first=pos==0; first=first.copy(); first[:,1]=True
    return dict(sign=f(sign),prev=f(prev),rew=f(rew),first=f(first),term=f(pos==N+1),pos=f(pos),cue=f(cue))
bins=dist.twohot_bins(cfg.bins)
def loss_fn(p,b,key):
    obs={'sign':jax.nn.one_hot(b['sign'],5)[...,None,:]}
    a=jax.nn.one_hot(b['prev'],2)
    ctx=latent.zero_latent(B,cfg,prec)
    seen=rssm.observe(trunk,p,obs,a,b['first'],ctx,jax.random.uniform(key,(T,B,cfg.groups)))
    row=Row(**{f:None for f in Row._fields})._replace(reward=b['rew'],terminated=b['term'],first=b['first'])
    terms=losses.losses(trunk,p,seen,obs,row)
    r,_,_=trunk.apply({'params':p},seen.feature(prec),method='heads')
    # of windows that saw the sign
    saw=jnp.cumsum(b['first']&(b['pos']==0),0)>0
    m=b['term']&saw
    pred=dist.twohot_mean(r,bins)
    acc=jnp.where(m,(pred>0.5)==(b['rew']>0.5),0).sum()/m.sum()
    t=dict(terms); t['reward']=rs*t['reward']
    first=b['first']&(b['pos']==0)
    d=jnp.where(first,terms['dyn'],0).sum()/first.sum(); o=jnp.where(first,terms['obs/sign'],0).sum()/first.sum()
    mid=(b['pos']==1)&saw
    md=jnp.where(mid,terms['dyn'],0).sum()/mid.sum()
    t['ent']=float(opts.get('ent',0))*dist.categorical_entropy(seen.log_post).sum(-1)
    return losses.total(t),(acc,terms['reward'].mean(),terms['dyn'].mean(),terms['obs/sign'].mean(),d,o,md,dist.categorical_entropy(seen.log_post).sum(-1).mean())
@jax.jit
def step(p,o,b,key):
    (l,aux),g=jax.value_and_grad(loss_fn,has_aux=True)(p,b,key)
    p,o,info=optimizer.apply(tx,g,o,p)
    return p,o,aux
rng=np.random.default_rng(int(opts.get('seed',0))); t0=time.time(); accs=[]
for u in range(U):
    params,opt,aux=step(params,opt,batch(rng),jax.random.key(u)); accs.append([float(x) for x in aux])
    if u%100==99:
        m=np.mean(accs[-100:],0); print(u+1,*(f'{x:.4f}' for x in m),f'{time.time()-t0:.0f}s',flush=True)
        if m[0]>.97: break
